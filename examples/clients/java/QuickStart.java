import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The official Java client: send a message, receive it, acknowledge it. */
public class QuickStart {
    public static void main(String[] args) throws Exception {
        String endpoint = args.length > 0 ? args[0] : "127.0.0.1:8081";
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(endpoint).build();

        try (Producer producer = provider.newProducerBuilder()
                .setClientConfiguration(configuration).setTopics("quick-start").build()) {
            Message message = provider.newMessageBuilder().setTopic("quick-start")
                .setBody("hello from Java".getBytes(StandardCharsets.UTF_8)).build();
            System.out.println("sent " + producer.send(message).getMessageId());
        }

        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration).setConsumerGroup("quick-start-java")
                .setAwaitDuration(Duration.ofSeconds(20))
                .setSubscriptionExpressions(Map.of("quick-start", FilterExpression.SUB_ALL)).build()) {
            for (MessageView received : consumer.receive(16, Duration.ofSeconds(30))) {
                consumer.ack(received);
                System.out.println("received " + StandardCharsets.UTF_8.decode(received.getBody()));
            }
        }
        System.exit(0);
    }
}
