// A client program for `harness run --client` (docs/client-protocol.md): a lock on one Redis server, in Java 17.
// To test a lock of your own, write it into the methods of `Attempt`. Build: javac -d DIR clients/RedisLock.java
// This file needs nothing but the JDK. With a JSON library, `text` and `number` are not needed.
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import static java.nio.charset.StandardCharsets.UTF_8;

public class RedisLock {
    /** An attempt to acquire the lock of `key`. No two attempts have the same owner. */
    record Attempt(String key, String owner) {
        /** Makes one attempt, and returns the fencing token. If another client holds the lock: Refusal `held`. */
        long acquire(long leaseMs) throws IOException {
            return eval("if redis.call('set',KEYS[1],ARGV[1],'nx','px',ARGV[2]) then "
                    + "return redis.call('incr','fence:'..KEYS[1]) end return 0", leaseMs, "held");
        }

        /** Lets the lock last for `leaseMs` from now on. If it is no longer this attempt's: Refusal `lost`. */
        void renew(long leaseMs) throws IOException {
            eval(ifOwner("'pexpire',KEYS[1],ARGV[2]"), leaseMs, "lost");
        }

        /** Gives the lock back. If it is no longer this attempt's: Refusal `lost`. */
        void release() throws IOException {
            eval(ifOwner("'del',KEYS[1]"), 0, "lost");
        }

        private static String ifOwner(String call) {
            return "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call(" + call + ") end return 0";
        }

        /** Runs a script on the server. An answer of 0 is the refusal `zero`. */
        private long eval(String script, long leaseMs, String zero) throws IOException {
            if (connection == null) {
                open();
            }
            long number;
            try {
                number = roundTrip("EVAL", script, "1", key, owner, Long.toString(leaseMs));
            } catch (IOException | RuntimeException error) {
                // A late answer must not be taken for the next one.
                connection.close();
                connection = null;
                throw error;
            }
            if (number == 0) {
                throw new Refusal(zero, zero);
            }
            return number;
        }
    }

    /** The request certainly did nothing. The code is one of docs/client-protocol.md. */
    static class Refusal extends RuntimeException {
        final String code;

        Refusal(String code, String detail) {
            super(detail);
            this.code = code;
        }
    }

    private static InetSocketAddress address;
    private static int patienceMs;
    private static Socket connection;
    private static BufferedReader answers;

    private static void open() throws IOException {
        Socket opened = new Socket();
        try {
            opened.connect(new InetSocketAddress(address.getHostString(), address.getPort()), patienceMs);
        } catch (IOException error) {
            opened.close();
            throw new Refusal("refused", error.toString());
        }
        opened.setSoTimeout(patienceMs);
        opened.setTcpNoDelay(true);
        connection = opened;
        answers = new BufferedReader(new InputStreamReader(opened.getInputStream(), UTF_8));
    }

    private static long roundTrip(String... words) throws IOException {
        StringBuilder command = new StringBuilder("*" + words.length + "\r\n");
        for (String word : words) {
            command.append('$').append(word.length()).append("\r\n").append(word).append("\r\n");
        }
        connection.getOutputStream().write(command.toString().getBytes(UTF_8));
        String line = answers.readLine();
        if (line == null || !line.startsWith(":")) {
            throw new IOException("the server answered " + line);
        }
        return Long.parseLong(line.substring(1));
    }

    /** A text of the request. No text of a request has a quote or an escape in it. */
    private static String text(String line, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\"([^\"]*)\"").matcher(line);
        return found.find() ? found.group(1) : "";
    }

    private static long number(String line, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":(\\d+)").matcher(line);
        return found.find() ? Long.parseLong(found.group(1)) : 0;
    }

    private static String done(String line) throws IOException {
        Attempt attempt = new Attempt(text(line, "key"), text(line, "owner"));
        long leaseMs = number(line, "lease_ms");
        switch (text(line, "op")) {
            case "init" -> {
                address = InetSocketAddress.createUnresolved(text(line, "host"), (int) number(line, "port"));
                // A request must be answered within one lease.
                patienceMs = (int) leaseMs / 4;
            }
            case "acquire" -> {
                return ",\"token\":" + attempt.acquire(leaseMs);
            }
            case "renew" -> attempt.renew(leaseMs);
            case "release", "cancel" -> attempt.release();
            default -> throw new Refusal("unsupported", "unknown request");
        }
        return "";
    }

    private static String failure(String code, Exception error) {
        String detail = error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", "'");
        return "\"ok\":false,\"error\":\"" + code + "\",\"detail\":\"" + detail + "\"";
    }

    public static void main(String[] args) throws IOException {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String answer;
            try {
                answer = "\"ok\":true" + done(line);
            } catch (Refusal refusal) {
                answer = failure(refusal.code, refusal);
            } catch (SocketTimeoutException error) {
                answer = failure("timeout", error);
            } catch (Exception error) {
                answer = failure("error", error);
            }
            System.out.println("{\"id\":" + number(line, "id") + "," + answer + "}");
        }
    }
}
