import com.sun.management.OperatingSystemMXBean;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousServerSocketChannel;
import java.nio.channels.AsynchronousSocketChannel;
import java.nio.channels.CompletionHandler;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * Servers and clients of Java's library: HTTP, asynchronous channels, a selector, and threads that wait.
 *
 * <pre>
 *   java Sockets serve PORT    HTTP at PORT, then servers of the three other kinds, which send everything back
 *   java Sockets ask PORT      asks each, and compares every byte
 * </pre>
 */
final class Sockets {
    private static final int LIMIT = 40;
    /** Nanoseconds of a processor that a second may take in which nothing happens. */
    private static final long IDLE = 250_000_000;
    private static final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        if (arguments[0].equals("serve")) {
            serveByChannels(address(port + 1));
            serveBySelector(address(port + 2));
            serveByThreads(address(port + 3));
            serveByHttp(address(port));
        } else {
            threads.submit(() -> askAll(port)).get(LIMIT, TimeUnit.SECONDS);
        }
    }

    private static InetSocketAddress address(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    private static byte[] bytes(int number, int length) {
        byte[] bytes = new byte[length];
        new Random(number).nextBytes(bytes);
        return bytes;
    }

    /** Lengths of what is sent at once: mostly short. */
    private static int length(int number, int longest) {
        return 1 + new Random(number).nextInt(number % 10 == 9 ? longest : 900);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    private static void checkEqual(byte[] there, byte[] own, String what) {
        int at = Arrays.mismatch(there, own);
        check(at < 0, what + ": " + there.length + " bytes for " + own.length + ", which differ from byte " + at);
    }

    /** What a thread threw that nobody asks. */
    private static void fail(Throwable error) {
        error.printStackTrace();
        System.exit(1);
    }

    private static void run(Callable<?> task) {
        threads.execute(() -> {
            try {
                task.call();
            } catch (Throwable error) {
                fail(error);
            }
        });
    }

    /** Runs a task for each number, all beside each other. */
    private static void beside(int count, Task task) throws Exception {
        List<Future<?>> all = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int own = number;
            all.add(threads.submit(() -> {
                task.run(own);
                return null;
            }));
        }
        for (Future<?> one : all) {
            one.get();
        }
    }

    private interface Task {
        void run(int number) throws Exception;
    }

    private static Void askAll(int port) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        askByHttp(client, port);
        beside(8, number -> askByChannels(port + 1, number));
        askBySelector(port + 2, 12);
        beside(16, number -> askByThreads(port + 3, number));
        rest(client, port);
        return null;
    }

    /** Connections on which nothing happens take no time of a processor. */
    private static void rest(HttpClient client, int port) throws Exception {
        List<Socket> open = new ArrayList<>();
        for (int kind = 1; kind <= 3; kind++) {
            Socket socket = new Socket(InetAddress.getLoopbackAddress(), port + kind);
            talk(socket, kind);
            open.add(socket);
        }
        Thread.sleep(200);
        long[] before = {processor(), serversProcessor(client, port)};
        Thread.sleep(1000);
        long own = processor() - before[0], servers = serversProcessor(client, port) - before[1];
        check(own < IDLE && servers < IDLE, "idle, and " + own + " and " + servers + " ns of the processors taken");
        for (Socket socket : open) {
            socket.close();
        }
        System.out.println("while nothing happened: client " + own / 1000 + " us, server " + servers / 1000 + " us");
    }

    private static long processor() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime();
    }

    private static long serversProcessor(HttpClient client, int port) throws Exception {
        var answer = client.send(request(port, "/processor").build(), HttpResponse.BodyHandlers.ofString());
        return Long.parseLong(answer.body());
    }

    // ---- HTTP -----------------------------------------------------------------------------------------------------

    private static void serveByHttp(InetSocketAddress address) throws IOException {
        HttpServer server = HttpServer.create(address, 100);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/echo", exchange -> answer(exchange, exchange.getRequestBody().readAllBytes()));
        server.createContext("/bytes/", exchange -> {
            String[] parts = exchange.getRequestURI().getPath().split("/");
            answer(exchange, bytes(Integer.parseInt(parts[2]), Integer.parseInt(parts[3])));
        });
        server.createContext("/processor", exchange -> answer(exchange, Long.toString(processor()).getBytes()));
        server.start();
    }

    private static void answer(HttpExchange exchange, byte[] body) throws IOException {
        exchange.sendResponseHeaders(200, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private static HttpRequest.Builder request(int port, String path) {
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path));
    }

    private static void askByHttp(HttpClient client, int port) throws Exception {
        for (int round = 0; round < 15; round++) {
            int first = round * 12;
            var answers = IntStream.range(first, first + 12).mapToObj(number -> {
                byte[] own = bytes(number, length(number, 200000));
                var request = number % 3 == 0
                    ? request(port, "/bytes/" + number + "/" + own.length).build()
                    : request(port, "/echo").POST(HttpRequest.BodyPublishers.ofByteArray(own)).build();
                return client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray())
                    .thenAccept(answer -> checkEqual(answer.body(), own, "request " + number));
            }).toList();
            for (var answer : answers) {
                answer.get();
            }
        }
        var download = client.send(request(port, "/bytes/1/5000000").build(), HttpResponse.BodyHandlers.ofByteArray());
        checkEqual(download.body(), bytes(1, 5000000), "a download");
    }

    // ---- asynchronous channels ------------------------------------------------------------------------------------

    private static void serveByChannels(InetSocketAddress address) throws IOException {
        var server = AsynchronousServerSocketChannel.open().bind(address, 100);
        accept(server);
    }

    private static void accept(AsynchronousServerSocketChannel server) {
        server.accept(null, new Handler<AsynchronousSocketChannel>(channel -> {
            accept(server);
            new Echo(channel).read();
        }));
    }

    private interface Act<T> {
        void on(T result) throws IOException;
    }

    private static class Handler<T> implements CompletionHandler<T, Void> {
        private final Act<T> act;

        Handler(Act<T> act) {
            this.act = act;
        }

        @Override
        public void completed(T result, Void nothing) {
            try {
                act.on(result);
            } catch (IOException error) {
                fail(error);
            }
        }

        @Override
        public void failed(Throwable error, Void nothing) {
            fail(error);
        }
    }

    private record Echo(AsynchronousSocketChannel channel, ByteBuffer buffer) {
        Echo(AsynchronousSocketChannel channel) {
            this(channel, ByteBuffer.allocate(30000));
        }

        void read() {
            buffer.clear();
            channel.read(buffer, null, new Handler<Integer>(length -> {
                if (length < 0) {
                    channel.close();
                    return;
                }
                buffer.flip();
                write();
            }));
        }

        void write() {
            channel.write(buffer, null, new Handler<Integer>(length -> {
                if (buffer.hasRemaining()) {
                    write();
                } else {
                    read();
                }
            }));
        }
    }

    private static void askByChannels(int port, int number) throws Exception {
        for (int round = 0; round < 3; round++) {
            try (var channel = AsynchronousSocketChannel.open()) {
                channel.connect(address(port)).get();
                for (int at = 0; at < 60; at++) {
                    byte[] own = bytes(at, length(number * 1000 + at, 200000));
                    ByteBuffer out = ByteBuffer.wrap(own), in = ByteBuffer.allocate(own.length);
                    Future<?> sending = threads.submit(() -> {
                        while (out.hasRemaining()) {
                            channel.write(out).get();
                        }
                        return null;
                    });
                    while (in.hasRemaining()) {
                        check(channel.read(in).get() > 0, "the channel has ended");
                    }
                    sending.get();
                    checkEqual(in.array(), own, "an answer to channel " + number);
                }
                channel.shutdownOutput();
                check(channel.read(ByteBuffer.allocate(1)).get() < 0, "a channel ends");
            }
        }
    }

    // ---- a selector -----------------------------------------------------------------------------------------------

    private static void serveBySelector(InetSocketAddress address) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel server = ServerSocketChannel.open().bind(address, 100);
        server.configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        run(() -> {
            while (true) {
                select(selector, key -> {
                    if (key.isAcceptable()) {
                        server.accept().configureBlocking(false)
                            .register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(30000));
                    } else {
                        echo(key, (SocketChannel) key.channel(), (ByteBuffer) key.attachment());
                    }
                });
            }
        });
    }

    private static void select(Selector selector, Act<SelectionKey> act) throws IOException {
        selector.select(key -> {
            try {
                act.on(key);
            } catch (IOException error) {
                fail(error);
            }
        });
    }

    /** Reads while there is room for it, and writes while there is something. */
    private static void echo(SelectionKey key, SocketChannel channel, ByteBuffer buffer) throws IOException {
        boolean hasEnded = key.isReadable() && channel.read(buffer) < 0;
        buffer.flip();
        channel.write(buffer);
        boolean isLeft = buffer.hasRemaining();
        buffer.compact();
        if (hasEnded && !isLeft) {
            channel.close();
        } else {
            int reads = buffer.hasRemaining() ? SelectionKey.OP_READ : 0;
            key.interestOps(isLeft ? reads | SelectionKey.OP_WRITE : reads);
        }
    }

    /** What one connection of a selector has to do. */
    private static final class Dialogue {
        private final byte[] own;
        private final ByteBuffer out, in;

        Dialogue(int number) {
            own = bytes(number, 400000 + number);
            out = ByteBuffer.wrap(own);
            in = ByteBuffer.allocate(own.length + 1);
        }

        /** Returns how many are over by that. */
        int go(SelectionKey key, SocketChannel channel, int piece) throws IOException {
            if (key.isConnectable()) {
                channel.finishConnect();
                key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                return 0;
            }
            if (key.isWritable()) {
                out.limit(Math.min(out.position() + piece, own.length));
                channel.write(out);
                if (out.position() == own.length) {
                    channel.shutdownOutput();
                    key.interestOps(SelectionKey.OP_READ);
                }
            }
            if (key.isReadable() && channel.read(in) < 0) {
                checkEqual(Arrays.copyOf(in.array(), in.position()), own, "what came back");
                channel.close();
                return 1;
            }
            return 0;
        }
    }

    private static void askBySelector(int port, int count) throws Exception {
        try (Selector selector = Selector.open()) {
            Random dice = new Random(1);
            for (int number = 0; number < count; number++) {
                var channel = SocketChannel.open();
                channel.configureBlocking(false).register(selector, SelectionKey.OP_CONNECT, new Dialogue(number));
                channel.connect(address(port));
            }
            for (int[] open = {count}; open[0] > 0;) {
                select(selector, key -> {
                    Dialogue dialogue = (Dialogue) key.attachment();
                    open[0] -= dialogue.go(key, (SocketChannel) key.channel(), 1 + dice.nextInt(50000));
                });
            }
        }
    }

    // ---- threads --------------------------------------------------------------------------------------------------

    private static void serveByThreads(InetSocketAddress address) throws IOException {
        ServerSocket server = new ServerSocket(address.getPort(), 100, address.getAddress());
        run(() -> {
            while (true) {
                Socket socket = server.accept();
                run(() -> {
                    try (socket) {
                        return socket.getInputStream().transferTo(socket.getOutputStream());
                    }
                });
            }
        });
    }

    private static void askByThreads(int port, int number) throws Exception {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            talk(socket, number);
            socket.shutdownOutput();
            check(socket.getInputStream().read() < 0, "the stream ends");
        }
    }

    /** A thread sends, another receives. */
    private static void talk(Socket socket, int number) throws Exception {
        for (int at = 0; at < 100; at++) {
            byte[] own = bytes(at, length(number * 1000 + at, 400000));
            Future<?> sending = threads.submit(() -> {
                socket.getOutputStream().write(own);
                return null;
            });
            checkEqual(socket.getInputStream().readNBytes(own.length), own, "an answer to thread " + number);
            sending.get();
        }
    }
}
