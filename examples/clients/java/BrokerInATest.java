import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** A real broker for the tests of a Java program; {@code Broker} goes into a JUnit extension or a try block. */
public class BrokerInATest {
    /** A broker on free ports, with data that goes when it does. */
    static final class Broker implements AutoCloseable {
        private static final Pattern READY = Pattern.compile("^ready: .* at (\\S+).*");
        private final Process process;
        final String endpoint;

        Broker() throws IOException {
            String program = System.getenv().getOrDefault("COSMODROME", "cosmodrome");
            process = new ProcessBuilder(program, "serve", "--dev", "--temporary", "--port", "0", "--metrics-port", "0")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            endpoint = awaitReady(process.inputReader());
        }

        private static String awaitReady(BufferedReader output) throws IOException {
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                Matcher ready = READY.matcher(line);
                if (ready.matches()) {
                    return ready.group(1);
                }
            }
            throw new IOException("the broker ended before it was ready");
        }

        @Override
        public void close() throws InterruptedException {
            process.destroy();
            process.waitFor();
        }
    }

    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        try (Broker broker = new Broker()) {
            ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(broker.endpoint).build();
            try (Producer producer = provider.newProducerBuilder()
                    .setClientConfiguration(configuration).setTopics("orders").build();
                 SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                    .setClientConfiguration(configuration).setConsumerGroup("billing")
                    .setAwaitDuration(Duration.ofSeconds(20))
                    .setSubscriptionExpressions(Map.of("orders", FilterExpression.SUB_ALL)).build()) {
                producer.send(provider.newMessageBuilder().setTopic("orders")
                    .setBody("hello".getBytes(StandardCharsets.UTF_8)).build());
                MessageView message = consumer.receive(1, Duration.ofSeconds(30)).get(0);
                if (!"hello".equals(StandardCharsets.UTF_8.decode(message.getBody()).toString())) {
                    throw new AssertionError("received " + message);
                }
                consumer.ack(message);
            }
        }
        System.out.println("ok");
        System.exit(0);
    }
}
