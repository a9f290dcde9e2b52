import java.lang.reflect.InvocationTargetException;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * What Pulsar's Java client does with schemas: {@code Schemas URL TOPIC SCENARIO ...}.
 *
 * Ends with 0 if the scenarios, the methods of these names, went as they must; else says what went
 * otherwise. Each takes a topic of its own, with the prefix that is given, and leaves messages.
 */
public class Schemas {
    static final int PATIENCE_S = 30;

    public static class Reading {
        public String sensor;
        public double celsius;
    }

    public static class Lux {
        public String sensor;
        public double celsius;
        public int lux;
    }

    final PulsarClient client;
    final String topic;

    Schemas(PulsarClient client, String topic) {
        this.client = client;
        this.topic = topic;
    }

    public static void main(String[] words) throws Exception {
        for (String name : List.of(words).subList(2, words.length)) {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build()) {
                Schemas scenario = new Schemas(client, words[1] + "-" + name);
                Schemas.class.getDeclaredMethod(name).invoke(scenario);
            } catch (InvocationTargetException failed) {
                System.err.println(name + " failed:");
                failed.getCause().printStackTrace();
                System.exit(1);
            }
        }
        System.exit(0);
    }

    void json() throws Exception {
        records(Schema.JSON(Reading.class));
        refused(Schema.AVRO(Reading.class));
    }

    void avro() throws Exception {
        records(Schema.AVRO(Reading.class));
        refused(Schema.JSON(Reading.class));
        refused(Schema.AVRO(Lux.class)); // lux has no default: it can't read what there is
    }

    void records(Schema<Reading> schema) throws Exception {
        Consumer<Reading> consumer = subscribe(schema);
        try (Producer<Reading> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(reading("roof", 3.5));
        }
        Message<Reading> message = receive(consumer);
        same("roof", message.getValue().sensor);
        same(3.5, message.getValue().celsius);
        same(8, message.getSchemaVersion().length);
        consumer.close();
        try (Consumer<GenericRecord> any = subscribe(Schema.AUTO_CONSUME())) {
            same("roof", receive(any).getValue().getField("sensor"));
        }
    }

    void inlinePairs() throws Exception {
        pairs(KeyValueEncodingType.INLINE);
    }

    void separatePairs() throws Exception {
        pairs(KeyValueEncodingType.SEPARATED);
    }

    void pairs(KeyValueEncodingType encoding) throws Exception {
        Schema<KeyValue<String, Reading>> schema =
                Schema.KeyValue(Schema.STRING, Schema.AVRO(Reading.class), encoding);
        Consumer<KeyValue<String, Reading>> consumer = subscribe(schema);
        try (Producer<KeyValue<String, Reading>> producer =
                client.newProducer(schema).topic(topic).create()) {
            producer.send(new KeyValue<>("k", reading("cellar", 4.0)));
        }
        KeyValue<String, Reading> pair = receive(consumer).getValue();
        same("k", pair.getKey());
        same("cellar", pair.getValue().sensor);
        consumer.close();
        try (Consumer<GenericRecord> any = subscribe(Schema.AUTO_CONSUME())) {
            GenericObject found = receive(any).getValue();
            KeyValue<?, ?> generic = (KeyValue<?, ?>) found.getNativeObject();
            same("k", generic.getKey());
            same("cellar", ((GenericRecord) generic.getValue()).getField("sensor"));
        }
        refused(Schema.KeyValue(Schema.INT32, Schema.AVRO(Reading.class), encoding));
        refused(Schema.KeyValue(Schema.STRING, Schema.AVRO(Lux.class), encoding));
    }

    // -- what they have in common --------------------------------------------------

    static Reading reading(String sensor, double celsius) {
        Reading made = new Reading();
        made.sensor = sensor;
        made.celsius = celsius;
        return made;
    }

    <T> Consumer<T> subscribe(Schema<T> schema) throws Exception {
        return client.newConsumer(schema)
                .topic(topic)
                .subscriptionName("s" + System.nanoTime())
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    /** Neither a producer nor a consumer may come with this schema. */
    void refused(Schema<?> schema) throws Exception {
        try {
            client.newProducer(schema).topic(topic).create();
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            try {
                subscribe(schema);
            } catch (PulsarClientException.IncompatibleSchemaException too) {
                return;
            }
        }
        throw new AssertionError("taken: " + schema.getSchemaInfo());
    }

    static <T> Message<T> receive(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("nothing came");
        }
        return message;
    }

    static void same(Object wanted, Object found) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError("found " + found + " instead of " + wanted);
        }
    }
}
