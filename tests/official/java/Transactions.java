import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClient;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.impl.PulsarClientImpl;

/**
 * What Pulsar's Java client does with transactions: {@code Transactions URL TOPIC SCENARIO ...}.
 *
 * Ends with 0 if the scenarios, the methods of these names, went as they must; else says what went
 * otherwise. Each takes a topic of its own, with the prefix that is given.
 */
public class Transactions {
    static final int PATIENCE_S = 30;
    static final int QUIET_MS = 300;

    final PulsarClient client;
    final String topic;

    Transactions(PulsarClient client, String topic) {
        this.client = client;
        this.topic = topic;
    }

    public static void main(String[] words) throws Exception {
        for (String name : List.of(words).subList(2, words.length)) {
            try (PulsarClient client =
                    PulsarClient.builder().serviceUrl(words[0]).enableTransaction(true).build()) {
                Transactions scenario = new Transactions(client, words[1] + "-" + name);
                Transactions.class.getDeclaredMethod(name).invoke(scenario);
            } catch (InvocationTargetException failed) {
                System.err.println(name + " failed:");
                failed.getCause().printStackTrace();
                System.exit(1);
            }
        }
        System.exit(0);
    }

    // -- messages in transactions --------------------------------------------------

    /** Two topics, one of them partitioned, batched and not: everything comes with the commit. */
    void messagesComeWithTheCommit() throws Exception {
        String other = topic + "-unbatched";
        Consumer<String> first = subscribe(topic, SubscriptionType.Exclusive);
        Consumer<String> second = subscribe(other, SubscriptionType.Exclusive);
        Producer<String> batched = producer(topic, true);
        Producer<String> single = producer(other, false);
        Transaction txn = begin();
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            sent.add(batched.newMessage(txn).value("b" + number).sendAsync());
            sent.add(single.newMessage(txn).value("s" + number).sendAsync());
        }
        for (CompletableFuture<MessageId> each : sent) {
            get(each);
        }
        nothingComes(first);
        nothingComes(second);
        same(Transaction.State.OPEN, txn.getState());
        get(txn.commit());
        same(Transaction.State.COMMITTED, txn.getState());
        same(sorted(numbered("b", 100)), sorted(values(receive(first, 100))));
        same(numbered("s", 100), values(receive(second, 100)));
    }

    /** Nothing of an aborted transaction comes; what was sent around it does. */
    void nothingOfAnAbortComes() throws Exception {
        Consumer<String> consumer = subscribe(topic, SubscriptionType.Exclusive);
        for (boolean batching : new boolean[] {true, false}) {
            try (Producer<String> producer = producer(topic, batching)) {
                producer.send("before");
                Transaction txn = begin();
                // One after the other: this client batches what waits, whatever its transaction.
                get(producer.newMessage(txn).value("never").sendAsync());
                producer.send("after");
                same(List.of("before"), values(receive(consumer, 1)));
                nothingComes(consumer);
                get(txn.abort());
                same(Transaction.State.ABORTED, txn.getState());
                same(List.of("after"), values(receive(consumer, 1)));
                nothingComes(consumer);
            }
        }
    }

    // -- acknowledgements in transactions ------------------------------------------

    /** Consume, process, produce: what an abort returns comes again, and counts once. */
    void consumeProcessProduce() throws Exception {
        Consumer<String> source = subscribe(topic, SubscriptionType.Shared);
        Consumer<String> result = subscribe(topic + "-out", SubscriptionType.Exclusive);
        Producer<String> sink = producer(topic + "-out", true);
        publish(producer(topic, true), 20);
        for (boolean commit : new boolean[] {false, true}) {
            List<Message<String>> messages = receive(source, 20);
            same(sorted(numbered("m", 20)), sorted(values(messages)));
            Transaction txn = begin();
            List<CompletableFuture<?>> done = new ArrayList<>();
            for (Message<String> message : messages) {
                same(commit ? 1 : 0, message.getRedeliveryCount());
                done.add(sink.newMessage(txn).value("r" + message.getValue()).sendAsync());
                done.add(source.acknowledgeAsync(message.getMessageId(), txn));
            }
            for (CompletableFuture<?> each : done) {
                get(each);
            }
            nothingComes(result);
            get(commit ? txn.commit() : txn.abort());
        }
        same(sorted(numbered("rm", 20)), sorted(values(receive(result, 20))));
        nothingComes(result);
        source.redeliverUnacknowledgedMessages();
        nothingComes(source);
        source.close();
        nothingComes(subscribe(topic, SubscriptionType.Shared));
    }

    /** A cumulative acknowledgement counts with the commit, and not after an abort. */
    void cumulativeAcknowledgements() throws Exception {
        publish(producer(topic, false), 10);
        Consumer<String> consumer = subscribe(topic, SubscriptionType.Exclusive);
        for (boolean commit : new boolean[] {false, true}) {
            List<Message<String>> messages = receive(consumer, 10);
            same(numbered("m", 10), values(messages));
            Transaction txn = begin();
            get(consumer.acknowledgeCumulativeAsync(messages.get(2).getMessageId(), txn));
            get(consumer.acknowledgeCumulativeAsync(messages.get(6).getMessageId(), txn));
            get(commit ? txn.commit() : txn.abort());
            consumer.close();
            consumer = subscribe(topic, SubscriptionType.Exclusive);
        }
        same(List.of("m7", "m8", "m9"), values(receive(consumer, 3)));
        nothingComes(consumer);
    }

    /** Messages of one batch are acknowledged in different transactions. */
    void partsOfABatch() throws Exception {
        Consumer<String> consumer =
                client.newConsumer(Schema.STRING)
                        .topic(topic)
                        .subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .enableBatchIndexAcknowledgment(true)
                        .subscribe();
        publish(producer(topic, true), 10);
        List<Message<String>> messages = receive(consumer, 10);
        Transaction kept = begin();
        Transaction dropped = begin();
        for (int number = 0; number < 10; number++) {
            Transaction txn = number % 3 == 0 ? dropped : kept;
            get(consumer.acknowledgeAsync(messages.get(number).getMessageId(), txn));
        }
        get(kept.commit());
        get(dropped.abort());
        same(List.of("m0", "m3", "m6", "m9"), sorted(values(receive(consumer, 4))));
        nothingComes(consumer);
    }

    /** Of two transactions that acknowledge the same, the second is told. */
    void acknowledgedTwice() throws Exception {
        Consumer<String> consumer = subscribe(topic, SubscriptionType.Shared);
        publish(producer(topic, false), 1);
        MessageId id = receive(consumer, 1).get(0).getMessageId();
        Transaction first = begin();
        Transaction second = begin();
        get(consumer.acknowledgeAsync(id, first));
        fails(PulsarClientException.TransactionConflictException.class,
                consumer.acknowledgeAsync(id, second));
        get(second.abort());
        get(first.commit());
        nothingComes(consumer);
    }

    /** The service restarts the subscription: what is refused meanwhile can be repeated. */
    void acknowledgedDuringARestart() throws Exception {
        Consumer<String> consumer = subscribe(topic, SubscriptionType.Shared);
        publish(producer(topic, false), 1);
        MessageId id = receive(consumer, 1).get(0).getMessageId();
        Transaction refused = begin();
        fails(PulsarClientException.LookupException.class,
                consumer.acknowledgeAsync(id, refused));
        same(true, PulsarClientException.isRetriableError(
                new PulsarClientException.LookupException("as above")));
        get(refused.abort());
        Transaction repeated = begin();
        get(consumer.acknowledgeAsync(id, repeated));
        get(repeated.commit());
        consumer.close();
        nothingComes(subscribe(topic, SubscriptionType.Shared));
    }

    // -- the ends of transactions --------------------------------------------------

    /** The client refuses what comes after the end, and says so with Pulsar's exceptions. */
    void afterTheEnd() throws Exception {
        Producer<String> producer = producer(topic, true);
        Transaction aborted = begin();
        get(producer.newMessage(aborted).value("never").sendAsync());
        get(aborted.abort());
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                aborted.commit());
        Transaction committed = begin();
        get(committed.commit());
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                committed.abort());
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                producer.newMessage(committed).value("late").sendAsync());
    }

    /** Behind the client's back: the service's verdicts stay, whoever asks, however often. */
    void verdictsStay() throws Exception {
        TransactionCoordinatorClient service = ((PulsarClientImpl) client).getTcClient();
        TxnID committed = service.newTransaction(1, TimeUnit.MINUTES);
        TxnID aborted = service.newTransaction(1, TimeUnit.MINUTES);
        for (int times = 0; times < 3; times++) {
            service.commit(committed);
            service.abort(aborted);
            fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                    service.commitAsync(aborted));
            fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                    service.abortAsync(committed));
        }
        TxnID unknown = new TxnID(committed.getMostSigBits(), committed.getLeastSigBits() + 1000);
        fails(TransactionCoordinatorClientException.TransactionNotFoundException.class,
                service.commitAsync(unknown));
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                service.addPublishPartitionToTxnAsync(aborted, List.of(topic)));
    }

    /** What is open for longer than its timeout is aborted by the service. */
    void timeouts() throws Exception {
        TransactionCoordinatorClient service = ((PulsarClientImpl) client).getTcClient();
        Consumer<String> consumer = subscribe(topic, SubscriptionType.Shared);
        Producer<String> producer = producer(topic, false);
        producer.send("first");
        Message<String> first = receive(consumer, 1).get(0);
        Transaction txn =
                get(client.newTransaction().withTransactionTimeout(2, TimeUnit.SECONDS).build());
        get(producer.newMessage(txn).value("never").sendAsync());
        get(consumer.acknowledgeAsync(first.getMessageId(), txn));
        producer.send("behind");
        List<Message<String>> messages = receive(consumer, 2);
        same(List.of("behind", "first"), sorted(values(messages)));
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class, txn.commit());
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class,
                service.commitAsync(txn.getTxnID()));
        nothingComes(consumer);
    }

    // -- what they share -----------------------------------------------------------

    Transaction begin() throws Exception {
        return get(client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build());
    }

    Producer<String> producer(String topic, boolean batching) throws Exception {
        return client.newProducer(Schema.STRING)
                .topic(topic)
                .enableBatching(batching)
                .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS)
                .create();
    }

    Consumer<String> subscribe(String topic, SubscriptionType type) throws Exception {
        return client.newConsumer(Schema.STRING)
                .topic(topic)
                .subscriptionName("s")
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    static void publish(Producer<String> producer, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (String value : numbered("m", count)) {
            sent.add(producer.sendAsync(value));
        }
        for (CompletableFuture<MessageId> each : sent) {
            get(each);
        }
    }

    static List<Message<String>> receive(Consumer<String> consumer, int count) throws Exception {
        List<Message<String>> found = new ArrayList<>();
        while (found.size() < count) {
            Message<String> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new AssertionError("only " + values(found) + " of " + count + " came");
            }
            found.add(message);
        }
        return found;
    }

    static void nothingComes(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS);
        if (message != null) {
            throw new AssertionError(message.getValue() + " came, " + message.getMessageId());
        }
    }

    static List<String> numbered(String prefix, int count) {
        List<String> found = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            found.add(prefix + number);
        }
        return found;
    }

    static List<String> values(List<Message<String>> messages) {
        List<String> found = new ArrayList<>();
        for (Message<String> message : messages) {
            found.add(message.getValue());
        }
        return found;
    }

    static List<String> sorted(List<String> values) {
        List<String> found = new ArrayList<>(values);
        Collections.sort(found);
        return found;
    }

    static <T> T get(CompletableFuture<T> work) throws Exception {
        return work.get(PATIENCE_S, TimeUnit.SECONDS);
    }

    static void fails(Class<? extends Exception> kind, CompletableFuture<?> work)
            throws Exception {
        try {
            Object found = get(work);
            throw new AssertionError(found + " instead of " + kind.getSimpleName());
        } catch (ExecutionException error) {
            Throwable cause = error.getCause();
            while (!kind.isInstance(cause) && cause.getCause() != null) {
                cause = cause.getCause();
            }
            if (!kind.isInstance(cause)) {
                throw new AssertionError("not a " + kind.getSimpleName(), error);
            }
        }
    }

    static void same(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError(found + " instead of " + expected);
        }
    }
}
