import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import org.apache.pulsar.shade.org.apache.avro.Schema;
import org.apache.pulsar.shade.org.apache.avro.SchemaParseException;
import org.apache.pulsar.shade.org.apache.avro.SchemaValidationException;
import org.apache.pulsar.shade.org.apache.avro.SchemaValidator;
import org.apache.pulsar.shade.org.apache.avro.SchemaValidatorBuilder;

/**
 * What Java's Avro says of schemas, asked as Pulsar's brokers ask it: {@code AvroRules FILE}.
 *
 * The file has four lines for each question: its name, the reader's schema, the writer's, and the
 * answer that is expected: true, false, or error. Ends with 0 if all answers are so.
 */
public class AvroRules {
    public static void main(String[] words) throws Exception {
        List<String> lines = Files.readAllLines(Path.of(words[0]), StandardCharsets.UTF_8);
        boolean well = true;
        for (int at = 0; at < lines.size(); at += 4) {
            String found = canRead(lines.get(at + 1), lines.get(at + 2));
            if (!found.equals(lines.get(at + 3))) {
                well = false;
                System.err.println(lines.get(at) + ": " + found + ", not " + lines.get(at + 3));
            }
        }
        System.exit(well ? 0 : 1);
    }

    static String canRead(String reader, String writer) {
        SchemaValidator validator = new SchemaValidatorBuilder().canReadStrategy().validateLatest();
        try {
            validator.validate(parsed(reader), Collections.singletonList(parsed(writer)));
            return "true";
        } catch (SchemaValidationException refused) {
            return "false";
        } catch (SchemaParseException wrong) {
            return "error";
        }
    }

    static Schema parsed(String text) {
        return new Schema.Parser().setValidateDefaults(false).parse(text);
    }
}
