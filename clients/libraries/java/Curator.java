import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * The client program of Curator's InterProcessMutex: requests on standard input, answers on standard output.
 *
 * <p>Curator's documentation strongly recommends a listener for SUSPENDED and LOST, so `renew` says what the listener
 * was told.
 */
public final class Curator {
    /** A lock, and the number of sessions that had been lost when it was asked for. */
    private record Held(InterProcessMutex mutex, int sessionsLost) {}

    private static final class Failure extends Exception {
        final String code;

        Failure(String code, String message) {
            super(message);
            this.code = code;
        }
    }

    private final CuratorFramework client;
    private final int timeoutMs;
    private final Map<String, Held> held = new HashMap<>();
    private volatile ConnectionState state = ConnectionState.SUSPENDED;
    private volatile int sessionsLost;

    private Curator(String servers, int leaseMs) {
        timeoutMs = leaseMs;
        client = CuratorFrameworkFactory.newClient(servers, leaseMs, leaseMs, new ExponentialBackoffRetry(100, 3));
        client.getConnectionStateListenable().addListener((self, changed) -> {
            state = changed;
            if (changed == ConnectionState.LOST) {
                sessionsLost++;
            }
        });
        client.start();
    }

    /**
     * Returns the time since the boot of the machine, as the kernel writes it. No clock fault changes this time; a fault
     * may make System.nanoTime jump.
     */
    private static long uptimeMs() throws Exception {
        String uptime = Files.readString(Path.of("/proc/uptime"));
        return Math.round(Double.parseDouble(uptime.substring(0, uptime.indexOf(' '))) * 1_000);
    }

    /** Returns after how many milliseconds of this attempt the session surely lived. */
    private long acquire(String key, String owner, long leaseMs) throws Exception {
        long askedMs = uptimeMs();
        InterProcessMutex mutex = new InterProcessMutex(client, "/locks/" + key);
        Held attempt = new Held(mutex, sessionsLost);
        if (!mutex.acquire(0, TimeUnit.MILLISECONDS)) {
            throw new Failure("held", "acquire returned false");
        }
        held.put(owner, attempt);
        // The session counts from its last sign of life, and nobody knows when in a slow attempt that was.
        long tookMs = uptimeMs() - askedMs;
        if (tookMs < leaseMs / 5) {
            return 0;
        }
        try {
            client.checkExists().forPath("/");
        } catch (Exception error) {
            release(owner);
            throw error;
        }
        return tookMs;
    }

    private Held of(String owner) throws Failure {
        Held lock = held.get(owner);
        if (lock == null) {
            throw new Failure("lost", "this process has no such lock");
        }
        return lock;
    }

    private void renew(String owner) throws Exception {
        Held lock = of(owner);
        requireSession(lock);
        if (state != ConnectionState.CONNECTED && state != ConnectionState.RECONNECTED) {
            throw new Failure("error", state.toString());
        }
        // Nobody knows when the last sign of life was, so this request gives one. It has no retries, which could take
        // longer than the lease.
        client.getZookeeperClient().getZooKeeper().exists("/", false);
        // A new session may have answered.
        requireSession(lock);
    }

    private void requireSession(Held lock) throws Failure {
        if (lock.sessionsLost != sessionsLost) {
            throw new Failure("lost", "LOST");
        }
    }

    private void release(String owner) throws Exception {
        Held lock = of(owner);
        held.remove(owner);
        lock.mutex.release();
    }

    private void answer(JsonNode request, ObjectNode answer) throws Exception {
        String owner = request.path("owner").asText();
        long leaseMs = request.path("lease_ms").asLong();
        // The session lives for its whole timeout after a sign of life, so three fifths are certain.
        switch (request.path("op").asText()) {
            case "acquire" -> answer.put("lease_ms", acquire(request.path("key").asText(), owner, leaseMs) + leaseMs * 3 / 5);
            case "renew" -> {
                renew(owner);
                answer.put("lease_ms", timeoutMs * 3 / 5);
            }
            case "release" -> release(owner);
            case "cancel" -> {
                // An attempt that got nothing has left nothing that its user could remove.
                if (held.containsKey(owner)) {
                    release(owner);
                }
            }
            default -> throw new Failure("unsupported", "unknown request");
        }
    }

    private static Curator opened(JsonNode request) throws Exception {
        List<String> servers = new ArrayList<>();
        request.path("servers").forEach(server -> servers.add(server.path("host").asText() + ":" + server.path("port")));
        Curator opened = new Curator(String.join(",", servers), request.path("lease_ms").asInt());
        // A new JVM loads the library's classes at its first request, which takes longer than a lease on a busy machine.
        opened.client.blockUntilConnected(5, TimeUnit.SECONDS);
        opened.client.checkExists().forPath("/locks");
        return opened;
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        Curator library = null;
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            JsonNode request = json.readTree(lines.nextLine());
            ObjectNode answer = json.createObjectNode().put("id", request.path("id").asLong());
            try {
                if (request.path("op").asText().equals("init")) {
                    library = opened(request);
                } else {
                    library.answer(request, answer);
                }
                answer.put("ok", true);
            } catch (Failure failure) {
                answer.put("ok", false).put("error", failure.code).put("detail", failure.getMessage());
            } catch (Exception error) {
                answer.put("ok", false).put("error", "error").put("detail", error.toString());
            }
            System.out.println(json.writeValueAsString(answer));
        }
        // The threads of the library must not keep the program from ending.
        System.exit(0);
    }
}
