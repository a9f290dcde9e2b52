import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Tls SERVICE_URL TOPIC TRUSTED [CERTIFICATE KEY] sends a message, receives and acknowledges it, and
 * prints its text. The last three are paths of files.
 */
public final class Tls {
    public static void main(String[] words) throws Exception {
        ClientBuilder options = PulsarClient.builder().serviceUrl(words[0]).tlsTrustCertsFilePath(words[2])
                .enableTlsHostnameVerification(true).operationTimeout(20, TimeUnit.SECONDS);
        if (words.length > 3) {
            options.authentication(AuthenticationFactory.TLS(words[3], words[4]));
        }
        try (PulsarClient client = options.build()) {
            Consumer<byte[]> consumer = client.newConsumer().topic(words[1]).subscriptionName("s").subscribe();
            client.newProducer().topic(words[1]).create().send("by TLS".getBytes());
            Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
            consumer.acknowledge(message);
            System.out.println(new String(message.getData()));
        }
    }
}
