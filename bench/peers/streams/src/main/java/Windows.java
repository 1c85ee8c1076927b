import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Computes one final value for each record key and window with Kafka Streams, and writes
 * it as Semel does: {"key":K,"start":T,"end":T,"values":{"n":N}}.
 *
 * <p>java Windows (flags of Dedup) --grace MS (--size MS [--every MS] | --gap MS)
 * [--final suppress|close [--emit MS]] [--value count|sum]
 *
 * <p>The value is the number of records, or the sum of the member "cents" of their bodies.
 * With suppress, an operator behind the aggregate holds the results back until their
 * windows close. With close, the aggregate itself emits them then. It looks for closed
 * windows when a record comes, at most once in the interval of --emit, by default 1 s.
 */
public final class Windows {
    public static void main(String[] args) throws InterruptedException {
        Map<String, String> flags = Dedup.flags(args);
        boolean sum = flags.getOrDefault("--value", "count").equals("sum");
        boolean suppress = flags.getOrDefault("--final", "suppress").equals("suppress");
        Duration grace = millis(flags, "--grace");
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, byte[]> groups =
                builder.stream(flags.get("--in"), Consumed.with(Serdes.String(), Serdes.ByteArray())).groupByKey();
        EmitStrategy emit = suppress ? EmitStrategy.onWindowUpdate() : EmitStrategy.onWindowClose();
        Serde<Long> longs = Serdes.Long();
        KTable<Windowed<String>, Long> table;
        if (flags.containsKey("--gap")) {
            var windows = groups.windowedBy(SessionWindows.ofInactivityGapAndGrace(millis(flags, "--gap"), grace)).emitStrategy(emit);
            Materialized<String, Long, SessionStore<Bytes, byte[]>> store = Materialized.with(Serdes.String(), longs);
            table = sum ? windows.aggregate(() -> 0L, (k, v, n) -> n + cents(v), (k, a, b) -> a + b, store) : windows.count(store);
        } else {
            TimeWindows over = TimeWindows.ofSizeAndGrace(millis(flags, "--size"), grace);
            if (flags.containsKey("--every")) {
                over = over.advanceBy(millis(flags, "--every"));
            }
            var windows = groups.windowedBy(over).emitStrategy(emit);
            Materialized<String, Long, WindowStore<Bytes, byte[]>> store = Materialized.with(Serdes.String(), longs);
            table = sum ? windows.aggregate(() -> 0L, (k, v, n) -> n + cents(v), store) : windows.count(store);
        }
        if (suppress) {
            table = table.suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()));
        }
        table.toStream().map((w, n) -> KeyValue.pair(w.key(), result(w, n)))
                .to(flags.get("--out"), Produced.with(Serdes.String(), Serdes.ByteArray()));
        Dedup.run(builder, flags);
    }

    private static Duration millis(Map<String, String> flags, String name) {
        return Duration.ofMillis(Long.parseLong(flags.get(name)));
    }

    private static byte[] result(Windowed<String> w, long n) {
        Instant start = w.window().startTime();
        Instant end = w.window().endTime();
        return ("{\"key\":\"" + w.key() + "\",\"start\":\"" + start + "\",\"end\":\"" + end + "\",\"values\":{\"n\":" + n + "}}")
                .getBytes(StandardCharsets.UTF_8);
    }

    private static final byte[] CENTS = "\"cents\":".getBytes(StandardCharsets.UTF_8);

    /** Finds the number by its name, which is faster than any parser of JSON. */
    private static long cents(byte[] body) {
        int at = 0;
        for (int matched = 0; matched < CENTS.length; at++) {
            matched = body[at] == CENTS[matched] ? matched + 1 : body[at] == CENTS[0] ? 1 : 0;
        }
        boolean negative = body[at] == '-';
        long n = 0;
        for (int i = negative ? at + 1 : at; body[i] >= '0' && body[i] <= '9'; i++) {
            n = n * 10 + body[i] - '0';
        }
        return negative ? -n : n;
    }
}
