//! The official Rust client: send a message, receive it, acknowledge it.

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut client = ClientOption::default();
    client.set_access_url(std::env::args().nth(1).unwrap_or("127.0.0.1:8081".into()));

    let mut option = ProducerOption::default();
    option.set_topics(vec!["quick-start"]);
    let mut producer = Producer::new(option, client.clone())?;
    producer.start().await?;
    let message = MessageBuilder::builder()
        .set_topic("quick-start")
        .set_body(b"hello from Rust".to_vec())
        .build()?;
    println!("sent {}", producer.send(message).await?.message_id());
    producer.shutdown().await?;

    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec!["quick-start"]);
    option.set_consumer_group("quick-start-rust");
    let mut consumer = SimpleConsumer::new(option, client)?;
    consumer.start().await?;
    let everything = FilterExpression::new(FilterType::Tag, "*");
    for message in consumer.receive("quick-start", &everything).await? {
        consumer.ack(&message).await?;
        println!("received {}", String::from_utf8_lossy(message.body()));
    }
    consumer.shutdown().await
}
