//! The official Rust client behind the line protocol of tests/conformance/driver.py: one JSON
//! object a line in, one out, every command in a task of its own. The released client has a
//! producer and a simple consumer; its delivery timestamps are whole seconds.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{Engine, BASE64_STANDARD};
use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Map, Value};
use tokio::sync::{Mutex, RwLock};

enum Client {
    Producer(Producer),
    Simple(SimpleConsumer, Mutex<Vec<(String, FilterExpression)>>),
}

#[derive(Default)]
struct Driver {
    clients: RwLock<HashMap<String, Arc<Client>>>,
    received: RwLock<HashMap<String, Arc<MessageView>>>,
    counter: Arc<AtomicU64>,
}

struct Problem {
    kind: String,
    message: String,
    /// The name of the code, as the client tells it.
    code: Option<String>,
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let code = error
            .context()
            .iter()
            .find(|(name, _)| *name == "code")
            .map(|(_, value)| value.clone());
        Problem { kind: format!("{:?}", error.kind()), message: format!("{error}"), code }
    }
}

fn problem(kind: &str, message: impl Into<String>) -> Problem {
    Problem { kind: kind.into(), message: message.into(), code: None }
}

fn say(line: Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the tests read our output");
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

fn shown(view: &MessageView, handle: &str) -> Value {
    let mut keys = view.keys().to_vec();
    keys.sort();
    json!({
        "handle": handle,
        "message_id": view.message_id(),
        "topic": view.topic(),
        "body": BASE64_STANDARD.encode(view.body()),
        "tag": view.tag(),
        "keys": keys,
        "properties": view.properties(),
        "message_group": view.message_group(),
        "attempt": view.delivery_attempt(),
        "delivery_at_ms": view.delivery_timestamp().map(|seconds| seconds * 1000),
        "born_at_ms": view.born_timestamp() * 1000,
        "born_host": view.born_host(),
    })
}

fn filters(command: &Value) -> Vec<(String, FilterExpression)> {
    let Some(given) = command.get("subscriptions").and_then(Value::as_object) else { return vec![] };
    given
        .iter()
        .map(|(topic, filter)| {
            let kind = if text(filter, "type") == Some("sql") { FilterType::Sql } else { FilterType::Tag };
            (topic.clone(), FilterExpression::new(kind, text(filter, "expression").unwrap_or("*")))
        })
        .collect()
}

fn options(command: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(command, "endpoint").unwrap_or_default());
    if let Some(tls) = command.get("tls").and_then(Value::as_bool) {
        option.set_enable_tls(tls);
    }
    if let (Some(key), Some(secret)) = (text(command, "access_key"), text(command, "secret_key")) {
        option.set_access_key(key);
        option.set_secret_key(secret);
    }
    if let Some(ms) = command.get("await_ms").and_then(Value::as_u64) {
        option.set_long_polling_timeout(Duration::from_millis(ms));
    }
    option
}

fn built(command: &Value) -> Result<impl Message, Problem> {
    let given = &command["message"];
    let body = BASE64_STANDARD
        .decode(text(given, "body").unwrap_or_default())
        .map_err(|error| problem("Base64", error.to_string()))?;
    let mut builder = MessageBuilder::builder().set_topic(text(given, "topic").unwrap_or_default()).set_body(body);
    if let Some(tag) = text(given, "tag") {
        builder = builder.set_tag(tag);
    }
    if let Some(keys) = given["keys"].as_array() {
        builder = builder.set_keys(keys.iter().filter_map(Value::as_str).collect());
    }
    if let Some(properties) = given["properties"].as_object() {
        let pairs = properties.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default()));
        builder = builder.set_properties(pairs.collect::<HashMap<_, _>>());
    }
    if let Some(group) = text(given, "message_group") {
        builder = builder.set_message_group(group);
    }
    if let Some(at) = given["delivery_at_ms"].as_i64() {
        builder = builder.set_delivery_timestamp(at / 1000);
    }
    if given["priority"].is_number() || given["lite_topic"].is_string() {
        return Err(problem("Unsupported", "no priority or lite topic in this client"));
    }
    if command["transaction"].is_string() {
        builder = builder.enable_transaction();
    }
    Ok(builder.build()?)
}

impl Driver {
    async fn client(&self, command: &Value) -> Result<Arc<Client>, Problem> {
        let name = text(command, "client").unwrap_or_default();
        let clients = self.clients.read().await;
        clients.get(name).cloned().ok_or_else(|| problem("NoClient", name))
    }

    async fn producer(&self, command: &Value) -> Result<Client, Problem> {
        let mut option = ProducerOption::default();
        option.set_logging_format(LoggingFormat::Terminal);
        if let Some(topics) = command["topics"].as_array() {
            option.set_topics(topics.iter().filter_map(Value::as_str).collect());
        }
        let mut producer = match text(command, "checker") {
            None => Producer::new(option, options(command))?,
            Some(verdict) => {
                let (client, verdict) = (command["client"].clone(), verdict.to_string());
                let counter = self.counter.clone();
                let check = move |_: String, view: MessageView| {
                    let verdict = view.properties().get("verdict").unwrap_or(&verdict).clone();
                    let handle = counter.fetch_add(1, Ordering::Relaxed).to_string();
                    say(json!({"event": "check", "client": client, "message": shown(&view, &handle), "result": verdict}));
                    match verdict.as_str() {
                        "commit" => TransactionResolution::COMMIT,
                        "rollback" => TransactionResolution::ROLLBACK,
                        _ => TransactionResolution::UNKNOWN,
                    }
                };
                Producer::new_transaction_producer(option, options(command), Box::new(check))?
            }
        };
        producer.start().await?;
        Ok(Client::Producer(producer))
    }

    async fn simple(&self, command: &Value) -> Result<Client, Problem> {
        let filters = filters(command);
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(text(command, "group").unwrap_or_default());
        option.set_topics(filters.iter().map(|(topic, _)| topic.as_str()).collect());
        let mut consumer = SimpleConsumer::new(option, options(command))?;
        consumer.start().await?;
        Ok(Client::Simple(consumer, Mutex::new(filters)))
    }

    async fn send(&self, command: &Value) -> Result<Value, Problem> {
        let client = self.client(command).await?;
        let Client::Producer(producer) = &*client else { return Err(problem("NoClient", "not a producer")) };
        let message = built(command)?;
        let Some(resolution) = text(command, "transaction") else {
            let receipt = producer.send(message).await?;
            return Ok(json!({"message_id": receipt.message_id()}));
        };
        let transaction = producer.send_transaction_message(message).await?;
        let answer = json!({
            "message_id": transaction.message_id(), "transaction_id": transaction.transaction_id(),
        });
        match resolution {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => (),
        }
        Ok(answer)
    }

    async fn receive(&self, command: &Value) -> Result<Value, Problem> {
        let client = self.client(command).await?;
        let Client::Simple(consumer, filters) = &*client else { return Err(problem("NoClient", "not a consumer")) };
        let (topic, filter) = {
            let mut turns = filters.lock().await;
            turns.rotate_left(1);
            let (topic, filter) = turns.last().ok_or_else(|| problem("NoTopic", "no subscription"))?;
            (topic.clone(), FilterExpression::new(filter.filter_type(), filter.expression()))
        };
        let invisible = Duration::from_millis(command["invisible_ms"].as_u64().unwrap_or_default());
        let most = command["max_messages"].as_i64().unwrap_or_default() as i32;
        let views = match consumer.receive_with(topic, &filter, most, invisible).await.map_err(Problem::from) {
            Err(error) if error.code.as_deref() == Some("MESSAGE_NOT_FOUND") => vec![],
            other => other?,
        };
        let mut messages = vec![];
        for view in views {
            let handle = self.counter.fetch_add(1, Ordering::Relaxed).to_string();
            messages.push(shown(&view, &handle));
            self.received.write().await.insert(handle, Arc::new(view));
        }
        Ok(json!({ "messages": messages }))
    }

    async fn ack(&self, command: &Value) -> Result<(), Problem> {
        let client = self.client(command).await?;
        let Client::Simple(consumer, _) = &*client else { return Err(problem("NoClient", "not a consumer")) };
        let handle = text(command, "handle").unwrap_or_default();
        let view = self.received.read().await.get(handle).cloned();
        let view = view.ok_or_else(|| problem("NoHandle", handle))?;
        Ok(consumer.ack(&*view).await?)
    }

    async fn resubscribe(&self, command: &Value) -> Result<(), Problem> {
        let client = self.client(command).await?;
        let Client::Simple(_, filters) = &*client else { return Err(problem("NoClient", "not a consumer")) };
        let mut turns = filters.lock().await;
        for (topic, filter) in self::filters(command) {
            turns.retain(|(known, _)| *known != topic);
            turns.push((topic, filter));
        }
        if let Some(topic) = text(command, "topic") {
            turns.retain(|(known, _)| known != topic);
        }
        Ok(())
    }

    async fn close(&self, command: &Value) -> Result<(), Problem> {
        let client = self.clients.write().await.remove(text(command, "client").unwrap_or_default());
        let client = client.ok_or_else(|| problem("NoClient", "closed already"))?;
        match Arc::try_unwrap(client) {
            Ok(Client::Producer(producer)) => Ok(producer.shutdown().await?),
            Ok(Client::Simple(consumer, _)) => Ok(consumer.shutdown().await?),
            Err(_) => Err(problem("Busy", "a call of this client is still under way")),
        }
    }

    async fn run(&self, command: &Value) -> Result<Value, Problem> {
        let op = text(command, "op").unwrap_or_default();
        match op {
            "producer" | "simple" => {
                let client = if op == "simple" { self.simple(command).await? } else { self.producer(command).await? };
                let name = text(command, "client").unwrap_or_default().to_string();
                self.clients.write().await.insert(name, Arc::new(client));
            }
            "send" => return self.send(command).await,
            "receive" => return self.receive(command).await,
            "ack" => self.ack(command).await?,
            "subscribe" | "unsubscribe" => self.resubscribe(command).await?,
            "close" => self.close(command).await?,
            _ => return Err(problem("Unsupported", format!("no {op} in this client"))),
        }
        Ok(json!({}))
    }

    async fn answer(self: Arc<Self>, command: Value) {
        let mut answer = Map::from_iter([("id".to_string(), command["id"].clone())]);
        // A task of its own: the client panics on codes that are younger than it is.
        let running = tokio::spawn(async move { self.run(&command).await });
        let outcome = running.await.unwrap_or_else(|error| Err(problem("Panic", error.to_string())));
        match outcome {
            Ok(Value::Object(fields)) => {
                answer.extend(fields);
                answer.insert("ok".into(), true.into());
            }
            Ok(other) => panic!("an answer is an object, not {other}"),
            Err(error) => {
                let said = json!({"type": error.kind, "message": error.message, "code": error.code});
                answer.extend([("ok".to_string(), false.into()), ("error".to_string(), said)]);
            }
        }
        say(Value::Object(answer));
    }
}

#[tokio::main]
async fn main() {
    say(json!({"event": "ready", "client_version": "5.0.0"}));
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel::<Value>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            let command: Value = serde_json::from_str(&line).expect("a command is JSON");
            if text(&command, "op") == Some("exit") || sender.send(command).is_err() {
                break;
            }
        }
    });
    let driver = Arc::new(Driver::default());
    while let Some(command) = commands.recv().await {
        let driver = driver.clone();
        tokio::spawn(async move { driver.answer(command).await });
    }
    std::process::exit(0);
}
