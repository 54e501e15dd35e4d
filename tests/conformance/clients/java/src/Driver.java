import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client behind the line protocol of tests/conformance/driver.py: one JSON object a line in,
 * one out, every command in a thread of its own.
 */
public final class Driver {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    // The client's logger prints to standard output until it is configured: keep the lines apart from it.
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private final Map<String, Closeable> clients = new ConcurrentHashMap<>();
    private final Map<String, MessageView> received = new ConcurrentHashMap<>();
    private final AtomicInteger counter = new AtomicInteger();

    static final class Filter {
        String expression;
        String type;

        FilterExpression built() {
            return new FilterExpression(expression,
                "sql".equals(type) ? FilterExpressionType.SQL92 : FilterExpressionType.TAG);
        }
    }

    static final class Given {
        String topic;
        String body;
        String tag;
        List<String> keys;
        Map<String, String> properties;
        String message_group;
        Long delivery_at_ms;
        Integer priority;
        String lite_topic;
    }

    static final class Command {
        int id;
        String op;
        String client;
        String endpoint;
        String namespace;
        Boolean tls;
        String access_key;
        String secret_key;
        List<String> topics;
        Integer max_attempts;
        String checker;
        String group;
        Map<String, Filter> subscriptions;
        long await_ms;
        int fail_times;
        long slow_ms;
        Given message;
        String transaction;
        boolean asynchronous;
        String topic;
        String recall_handle;
        int max_messages;
        long invisible_ms;
        String handle;
        String bind_topic;
        String lite_topic;
        boolean from_start;
    }

    private static synchronized void say(Map<String, Object> line) {
        OUT.println(GSON.toJson(line));
    }

    private static Map<String, Object> line(Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            line.put((String) pairs[i], pairs[i + 1]);
        }
        return line;
    }

    private Map<String, Object> shown(MessageView view) {
        String handle = String.valueOf(counter.incrementAndGet());
        received.put(handle, view);
        ByteBuffer body = view.getBody().duplicate();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return line(
            "handle", handle,
            "message_id", view.getMessageId().toString(),
            "topic", view.getTopic(),
            "body", Base64.getEncoder().encodeToString(bytes),
            "tag", view.getTag().orElse(null),
            "keys", new TreeSet<>(view.getKeys()),
            "properties", view.getProperties(),
            "message_group", view.getMessageGroup().orElse(null),
            "attempt", view.getDeliveryAttempt(),
            "delivery_at_ms", view.getDeliveryTimestamp().orElse(null),
            "born_at_ms", view.getBornTimestamp(),
            "born_host", view.getBornHost(),
            "priority", view.getPriority().orElse(null),
            "lite_topic", view.getLiteTopic().orElse(null));
    }

    /** Fails each message fail_times times, after slow_ms of work, and tells of each delivery. */
    private MessageListener listener(Command command) {
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        return view -> {
            boolean succeeds = seen.merge(view.getMessageId().toString(), 1, Integer::sum) > command.fail_times;
            say(line("event", "delivery", "client", command.client, "message", shown(view),
                "result", succeeds ? "success" : "failure"));
            try {
                Thread.sleep(command.slow_ms);
            } catch (InterruptedException interrupted) {
                return ConsumeResult.FAILURE;
            }
            return succeeds ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
        };
    }

    /** Answers with the message's own property `verdict`, else with the one it was made with. */
    private TransactionResolution check(Command command, MessageView view) {
        String verdict = view.getProperties().getOrDefault("verdict", command.checker);
        say(line("event", "check", "client", command.client, "message", shown(view), "result", verdict));
        return TransactionResolution.valueOf(verdict.toUpperCase());
    }

    private static ClientConfiguration configuration(Command command) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(command.endpoint);
        if (command.tls != null) {
            builder.enableSsl(command.tls);
        }
        if (command.namespace != null) {
            builder.setNamespace(command.namespace);
        }
        if (command.access_key != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(command.access_key, command.secret_key));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> subscriptions(Command command) {
        Map<String, FilterExpression> expressions = new HashMap<>();
        if (command.subscriptions != null) {
            command.subscriptions.forEach((topic, filter) -> expressions.put(topic, filter.built()));
        }
        return expressions;
    }

    private static Message built(Given given) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(given.topic).setBody(Base64.getDecoder().decode(given.body));
        if (given.tag != null) {
            builder.setTag(given.tag);
        }
        if (given.keys != null && !given.keys.isEmpty()) {
            builder.setKeys(given.keys.toArray(new String[0]));
        }
        if (given.properties != null) {
            given.properties.forEach(builder::addProperty);
        }
        if (given.message_group != null) {
            builder.setMessageGroup(given.message_group);
        }
        if (given.delivery_at_ms != null) {
            builder.setDeliveryTimestamp(given.delivery_at_ms);
        }
        if (given.priority != null) {
            builder.setPriority(given.priority);
        }
        if (given.lite_topic != null) {
            builder.setLiteTopic(given.lite_topic);
        }
        return builder.build();
    }

    private Closeable producer(Command command) throws Exception {
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(command));
        if (command.topics != null) {
            builder.setTopics(command.topics.toArray(new String[0]));
        }
        if (command.max_attempts != null) {
            builder.setMaxAttempts(command.max_attempts);
        }
        if (command.checker != null) {
            builder.setTransactionChecker(view -> check(command, view));
        }
        return builder.build();
    }

    private Closeable consumer(Command command) throws Exception {
        switch (command.op) {
            case "simple":
                return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration(command))
                    .setConsumerGroup(command.group).setAwaitDuration(Duration.ofMillis(command.await_ms))
                    .setSubscriptionExpressions(subscriptions(command)).build();
            case "push":
                return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration(command))
                    .setConsumerGroup(command.group).setSubscriptionExpressions(subscriptions(command))
                    .setMessageListener(listener(command)).build();
            default:
                return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration(command))
                    .setConsumerGroup(command.group).bindTopic(command.bind_topic)
                    .setMessageListener(listener(command)).build();
        }
    }

    private Map<String, Object> send(Command command) throws Exception {
        Producer producer = (Producer) clients.get(command.client);
        Message message = built(command.message);
        SendReceipt receipt;
        if (command.transaction != null) {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(message, transaction);
            if (command.transaction.equals("commit")) {
                transaction.commit();
            } else if (command.transaction.equals("rollback")) {
                transaction.rollback();
            }
        } else {
            receipt = command.asynchronous ? producer.sendAsync(message).get() : producer.send(message);
        }
        String recall = receipt.getRecallHandle();
        return line("message_id", receipt.getMessageId().toString(),
            "recall_handle", recall == null || recall.isEmpty() ? null : recall);
    }

    private Map<String, Object> receive(Command command) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) clients.get(command.client);
        Duration invisible = Duration.ofMillis(command.invisible_ms);
        List<MessageView> views = command.asynchronous
            ? consumer.receiveAsync(command.max_messages, invisible).get()
            : consumer.receive(command.max_messages, invisible);
        List<Object> messages = new ArrayList<>();
        views.forEach(view -> messages.add(shown(view)));
        return line("messages", messages);
    }

    private void settle(Command command) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) clients.get(command.client);
        MessageView view = received.get(command.handle);
        if (command.op.equals("change_invisible")) {
            consumer.changeInvisibleDuration(view, Duration.ofMillis(command.invisible_ms));
        } else if (command.asynchronous) {
            consumer.ackAsync(view).get();
        } else {
            consumer.ack(view);
        }
    }

    private void resubscribe(Command command) throws Exception {
        Closeable client = clients.get(command.client);
        for (Map.Entry<String, FilterExpression> each : subscriptions(command).entrySet()) {
            if (client instanceof PushConsumer) {
                ((PushConsumer) client).subscribe(each.getKey(), each.getValue());
            } else {
                ((SimpleConsumer) client).subscribe(each.getKey(), each.getValue());
            }
        }
        if (command.op.equals("unsubscribe") && client instanceof PushConsumer) {
            ((PushConsumer) client).unsubscribe(command.topic);
        } else if (command.op.equals("unsubscribe")) {
            ((SimpleConsumer) client).unsubscribe(command.topic);
        }
    }

    private Map<String, Object> run(Command command) throws Exception {
        switch (command.op) {
            case "producer":
                clients.put(command.client, producer(command));
                break;
            case "simple":
            case "push":
            case "lite_push":
                clients.put(command.client, consumer(command));
                break;
            case "send":
                return send(command);
            case "recall":
                return line("message_id", ((Producer) clients.get(command.client))
                    .recallMessage(command.topic, command.recall_handle).getMessageId().toString());
            case "receive":
                return receive(command);
            case "ack":
            case "change_invisible":
                settle(command);
                break;
            case "subscribe":
            case "unsubscribe":
                resubscribe(command);
                break;
            case "subscribe_lite":
                LitePushConsumer lite = (LitePushConsumer) clients.get(command.client);
                if (command.from_start) {
                    lite.subscribeLite(command.lite_topic, OffsetOption.MIN_OFFSET);
                } else {
                    lite.subscribeLite(command.lite_topic);
                }
                break;
            case "unsubscribe_lite":
                ((LitePushConsumer) clients.get(command.client)).unsubscribeLite(command.lite_topic);
                break;
            case "close":
                clients.remove(command.client).close();
                break;
            default:
                throw new UnsupportedOperationException("no " + command.op + " in this client");
        }
        return Collections.emptyMap();
    }

    private void answer(Command command) {
        Map<String, Object> answer = line("id", command.id);
        try {
            answer.putAll(run(command));
            answer.put("ok", true);
        } catch (Throwable thrown) {
            Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            String message = String.valueOf(error.getMessage());
            Matcher code = CODE.matcher(message);
            answer.put("ok", false);
            answer.put("error", line("type", error.getClass().getSimpleName(), "message", message,
                "code", code.find() ? Integer.valueOf(code.group(1)) : null));
        }
        say(answer);
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        Driver driver = new Driver();
        ExecutorService pool = Executors.newCachedThreadPool();
        say(line("event", "ready", "client_version", args[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String text = lines.readLine(); text != null; text = lines.readLine()) {
            if (GSON.fromJson(text, JsonObject.class).get("op").getAsString().equals("exit")) {
                break;
            }
            Command command = GSON.fromJson(text, Command.class);
            pool.submit(() -> driver.answer(command));
        }
        Runtime.getRuntime().halt(0); // the client's threads are not daemons
    }
}
