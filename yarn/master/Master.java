import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/**
 * A trial: an application master of our own, to see what replacing skein's would cost.
 *
 * <p>It asks for containers of one kind, starts a script in each, and serves the calls of
 * elasticml's protocol by HTTP: containers, kill, key-value, progress, shutdown. What the
 * ResourceManager says about pre-emption is in the answer to each heartbeat, and a client that waits
 * on /events has it at once. It has no TLS, no Kerberos, no recovery: see the note
 * docs/notes/yarn-master.md.
 *
 * <p>Arguments: milliseconds between heartbeats, megabytes and vcores of a container, its script.
 */
public final class Master {
  private final Map<String, byte[]> store = new TreeMap<>();
  private final Map<ContainerId, String> containers = new LinkedHashMap<>();
  private final List<String> events = new ArrayList<>();
  private final AMRMClient<ContainerRequest> rm = AMRMClient.createAMRMClient();
  private final NMClient nodes = NMClient.createNMClient();
  private final Resource size;
  private final String script;
  private final int heartbeatMs;
  private int wanted;
  private float progress;
  private FinalApplicationStatus end;
  private String diagnostics = "";

  private Master(int heartbeatMs, int memoryMib, int vcores, String script) {
    this.heartbeatMs = heartbeatMs;
    this.size = Resource.newInstance(memoryMib, vcores);
    this.script = script;
  }

  public static void main(String[] arguments) throws Exception {
    new Master(
            Integer.parseInt(arguments[0]),
            Integer.parseInt(arguments[1]),
            Integer.parseInt(arguments[2]),
            arguments[3])
        .run();
  }

  private void run() throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLocalHost(), 0), 0);
    server.createContext("/", this::answer);
    server.setExecutor(Executors.newCachedThreadPool());
    server.start();
    rm.init(conf);
    rm.start();
    nodes.init(conf);
    nodes.start();
    String host = InetAddress.getLocalHost().getHostAddress();
    int port = server.getAddress().getPort();
    rm.registerApplicationMaster(host, port, "http://" + host + ":" + port + "/");
    while (end == null) {
      AllocateResponse response = rm.allocate(progress);
      take(response);
      Thread.sleep(heartbeatMs);
    }
    rm.unregisterApplicationMaster(end, diagnostics, null);
    server.stop(0);
    System.exit(0);
  }

  private synchronized void take(AllocateResponse response) throws Exception {
    PreemptionMessage message = response.getPreemptionMessage();
    if (message != null && message.getContract() != null) {
      for (PreemptionContainer one : message.getContract().getContainers()) {
        tell("marked", one.getId(), "");
      }
    }
    if (message != null && message.getStrictContract() != null) {
      for (PreemptionContainer one : message.getStrictContract().getContainers()) {
        tell("marked", one.getId(), "strict");
      }
    }
    for (Container container : response.getAllocatedContainers()) {
      // A container that is granted after its request was withdrawn, or twice.
      if (active() >= wanted) {
        rm.releaseAssignedContainer(container.getId());
        continue;
      }
      containers.put(container.getId(), "running");
      rm.removeContainerRequest(request());
      nodes.startContainer(container, launch());
      tell("started", container.getId(), container.getNodeId().toString());
    }
    for (ContainerStatus status : response.getCompletedContainersStatuses()) {
      containers.put(status.getContainerId(), "exit " + status.getExitStatus());
      tell("ended", status.getContainerId(), status.getExitStatus() + " " + status.getDiagnostics());
    }
    ask();
  }

  private long active() {
    return containers.values().stream().filter("running"::equals).count();
  }

  private void ask() {
    int asked = rm.getMatchingRequests(Priority.newInstance(1), "*", size).stream()
        .mapToInt(java.util.Collection::size)
        .sum();
    for (long missing = wanted - active() - asked; missing > 0; missing--) {
      rm.addContainerRequest(request());
    }
  }

  private ContainerRequest request() {
    return new ContainerRequest(size, null, null, Priority.newInstance(1));
  }

  private ContainerLaunchContext launch() throws IOException {
    Map<String, String> environment = new HashMap<>(System.getenv());
    environment.keySet().removeIf(name -> name.startsWith("CONTAINER_"));
    return ContainerLaunchContext.newInstance(
        Collections.emptyMap(),
        environment,
        Collections.singletonList(script),
        Collections.emptyMap(),
        null,
        Collections.emptyMap());
  }

  private void tell(String what, ContainerId container, String text) {
    events.add(System.currentTimeMillis() + " " + what + " " + container + " "
        + text.replace('\n', ' '));
    notifyAll();
  }

  /** GET /events?since, GET /containers, GET and PUT /kv/KEY, PUT /scale, /kill, /progress, /end. */
  private void answer(HttpExchange exchange) throws IOException {
    URI uri = exchange.getRequestURI();
    String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
    byte[] reply;
    synchronized (this) {
      reply = reply(exchange.getRequestMethod(), uri, body);
    }
    exchange.sendResponseHeaders(reply == null ? 404 : 200, reply == null ? -1 : reply.length);
    if (reply != null) {
      try (OutputStream out = exchange.getResponseBody()) {
        out.write(reply);
      }
    }
    exchange.close();
  }

  private byte[] reply(String method, URI uri, String body) {
    String path = uri.getPath();
    if (path.startsWith("/kv/")) {
      if (method.equals("PUT")) {
        store.put(path.substring(4), body.getBytes(StandardCharsets.UTF_8));
        notifyAll();
      }
      return store.get(path.substring(4));
    }
    if (method.equals("PUT")) {
      return act(path, body);
    }
    if (path.equals("/containers")) {
      return containers.toString().getBytes(StandardCharsets.UTF_8);
    }
    if (path.equals("/events")) {
      int since = Integer.parseInt(uri.getQuery());
      try {
        for (long until = System.currentTimeMillis() + 10_000;
            events.size() <= since && System.currentTimeMillis() < until; ) {
          wait(1_000);
        }
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
      }
      String news = String.join("\n", events.subList(Math.min(since, events.size()), events.size()));
      return news.getBytes(StandardCharsets.UTF_8);
    }
    return null;
  }

  private byte[] act(String path, String body) {
    switch (path) {
      case "/scale":
        wanted = Integer.parseInt(body);
        for (ContainerId id : new ArrayList<>(containers.keySet())) {
          if (active() > wanted && containers.get(id).equals("running")) {
            containers.put(id, "killed");
            rm.releaseAssignedContainer(id);
          }
        }
        return new byte[0];
      case "/kill":
        ContainerId id = ContainerId.fromString(body);
        if (containers.replace(id, "running", "killed")) {
          wanted--;
          rm.releaseAssignedContainer(id);
        }
        return new byte[0];
      case "/progress":
        progress = Float.parseFloat(body);
        return new byte[0];
      case "/end":
        diagnostics = body.substring(body.indexOf(' ') + 1);
        end = FinalApplicationStatus.valueOf(body.substring(0, body.indexOf(' ')));
        return new byte[0];
      default:
        return null;
    }
  }
}
