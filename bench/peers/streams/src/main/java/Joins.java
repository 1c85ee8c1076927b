import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Joins records with the rows of their record keys with Kafka Streams, and writes
 * {"left":RECORD,"right":ROW}.
 *
 * <p>java Joins (flags of Dedup) --side T [--history MS --idle MS]
 *
 * <p>The table is a GlobalKTable, which is read before the first join. With --history it is a
 * versioned KTable, and a record is joined with the row of its time. Then --idle is how long
 * a task waits for records of both topics, so that it can go by their times.
 */
public final class Joins {
    public static void main(String[] args) throws InterruptedException {
        Map<String, String> flags = Dedup.flags(args);
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, byte[]> consumed = Consumed.with(Serdes.String(), Serdes.ByteArray());
        KStream<String, byte[]> in = builder.stream(flags.get("--in"), consumed);
        KStream<String, byte[]> out;
        if (flags.containsKey("--history")) {
            var store = Stores.persistentVersionedKeyValueStore("side", Duration.ofMillis(Long.parseLong(flags.get("--history"))));
            Materialized<String, byte[], ?> rows = Materialized.<String, byte[]>as(store).withKeySerde(Serdes.String()).withValueSerde(Serdes.ByteArray());
            @SuppressWarnings("unchecked")
            var table = builder.table(flags.get("--side"), consumed,
                    (Materialized<String, byte[], org.apache.kafka.streams.state.KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>>) rows);
            out = in.join(table, Joins::joined, Joined.with(Serdes.String(), Serdes.ByteArray(), Serdes.ByteArray()));
        } else {
            out = in.join(builder.globalTable(flags.get("--side"), consumed), (key, value) -> key, Joins::joined);
        }
        out.to(flags.get("--out"), Produced.with(Serdes.String(), Serdes.ByteArray()));
        Dedup.run(builder, flags);
    }

    private static byte[] joined(byte[] left, byte[] right) {
        return ("{\"left\":" + new String(left, StandardCharsets.UTF_8) + ",\"right\":" + new String(right, StandardCharsets.UTF_8) + "}")
                .getBytes(StandardCharsets.UTF_8);
    }
}
