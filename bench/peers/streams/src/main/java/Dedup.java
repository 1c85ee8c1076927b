import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Deduplicates a topic by the key of its records with Kafka Streams, in one of
 * the two ways that its users write: with a window store of one hour, where a
 * duplicate prolongs the window, or with a key-value store, which never forgets.
 *
 * <p>java Dedup --bootstrap A --in T --out T --group G --state DIR [--store
 * window|kv] [--eos true] [--commit MS] [--tuned true] [--threads N]
 * [--instance ID] [--session MS] [--cache BYTES]
 *
 * <p>It ends in order at SIGTERM.
 */
public final class Dedup {
    private static final Duration WINDOW = Duration.ofHours(1);
    private static final String STORE = "seen";

    public static void main(String[] args) throws InterruptedException {
        Map<String, String> flags = flags(args);
        StreamsBuilder builder = new StreamsBuilder();
        boolean window = flags.getOrDefault("--store", "window").equals("window");
        FixedKeyProcessorSupplier<String, byte[], byte[]> supplier = window ? new InWindow() : new Forever();
        builder.stream(flags.get("--in"), Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .processValues(supplier)
                .to(flags.get("--out"), Produced.with(Serdes.String(), Serdes.ByteArray()));
        run(builder, flags);
    }

    static Map<String, String> flags(String[] args) {
        Map<String, String> flags = new HashMap<>();
        for (int i = 0; i < args.length; i += 2) {
            flags.put(args[i], args[i + 1]);
        }
        return flags;
    }

    /** Runs a topology until SIGTERM. */
    static void run(StreamsBuilder builder, Map<String, String> flags) throws InterruptedException {
        KafkaStreams streams = new KafkaStreams(builder.build(), properties(flags));
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(e -> {
            e.printStackTrace();
            new Thread(() -> Runtime.getRuntime().halt(1)).start();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(20));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }

    private static Properties properties(Map<String, String> flags) {
        Properties p = new Properties();
        p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, flags.get("--bootstrap"));
        p.put(StreamsConfig.APPLICATION_ID_CONFIG, flags.get("--group"));
        p.put(StreamsConfig.STATE_DIR_CONFIG, flags.get("--state"));
        p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, flags.getOrDefault("--threads", "1"));
        if (Boolean.parseBoolean(flags.getOrDefault("--eos", "true"))) {
            p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        }
        p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, flags.getOrDefault("--commit", "100"));
        // With the cache every record of a deduplication costs more, and no duplicate is found sooner.
        p.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, flags.getOrDefault("--cache", "0"));
        if (flags.containsKey("--emit")) {
            p.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, flags.get("--emit"));
        }
        if (flags.containsKey("--idle")) {
            p.put(StreamsConfig.MAX_TASK_IDLE_MS_CONFIG, flags.get("--idle"));
        }
        if (flags.containsKey("--instance")) {
            p.put(StreamsConfig.consumerPrefix("group.instance.id"), flags.get("--instance"));
        }
        if (flags.containsKey("--session")) {
            int session = Integer.parseInt(flags.get("--session"));
            p.put(StreamsConfig.consumerPrefix("session.timeout.ms"), session);
            p.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), session / 3);
        }
        if (Boolean.parseBoolean(flags.getOrDefault("--tuned", "false"))) {
            p.put(StreamsConfig.producerPrefix("batch.size"), 256 << 10);
            p.put(StreamsConfig.consumerPrefix("max.poll.records"), 5000);
            p.put(StreamsConfig.consumerPrefix("max.partition.fetch.bytes"), 4 << 20);
        }
        return p;
    }

    /** Half the window before a record and half of it after, as the recipe has it. */
    private static final class InWindow implements FixedKeyProcessorSupplier<String, byte[], byte[]> {
        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.windowStoreBuilder(
                    Stores.persistentWindowStore(STORE, WINDOW, WINDOW, false), Serdes.String(), Serdes.Long()));
        }

        @Override
        public FixedKeyProcessor<String, byte[], byte[]> get() {
            return new FixedKeyProcessor<>() {
                private FixedKeyProcessorContext<String, byte[]> context;
                private WindowStore<String, Long> seen;

                @Override
                public void init(FixedKeyProcessorContext<String, byte[]> context) {
                    this.context = context;
                    this.seen = context.getStateStore(STORE);
                }

                @Override
                public void process(FixedKeyRecord<String, byte[]> record) {
                    Instant time = Instant.ofEpochMilli(record.timestamp());
                    Duration half = WINDOW.dividedBy(2);
                    boolean duplicate;
                    try (var found = seen.fetch(record.key(), time.minus(half), time.plus(half))) {
                        duplicate = found.hasNext();
                    }
                    seen.put(record.key(), record.timestamp(), record.timestamp());
                    if (!duplicate) {
                        context.forward(record);
                    }
                }
            };
        }
    }

    private static final class Forever implements FixedKeyProcessorSupplier<String, byte[], byte[]> {
        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore(STORE), Serdes.String(), Serdes.Long()));
        }

        @Override
        public FixedKeyProcessor<String, byte[], byte[]> get() {
            return new FixedKeyProcessor<>() {
                private FixedKeyProcessorContext<String, byte[]> context;
                private KeyValueStore<String, Long> seen;

                @Override
                public void init(FixedKeyProcessorContext<String, byte[]> context) {
                    this.context = context;
                    this.seen = context.getStateStore(STORE);
                }

                @Override
                public void process(FixedKeyRecord<String, byte[]> record) {
                    if (seen.get(record.key()) == null) {
                        seen.put(record.key(), record.timestamp());
                        context.forward(record);
                    }
                }
            };
        }
    }
}
