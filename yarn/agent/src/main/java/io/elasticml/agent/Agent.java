package io.elasticml.agent;

import java.lang.instrument.Instrumentation;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/**
 * Entry point: {@code -javaagent:$PWD/elasticml-agent.jar[=heartbeat_ms]}.
 *
 * <p>No byte code is rewritten. {@code premain} lays one more resource over Hadoop's configuration,
 * in which {@code yarn.ipc.rpc.class}, an extension point of YARN's, names {@link NoticeRpc}.
 *
 * <p>Every JVM that inherits {@code JAVA_TOOL_OPTIONS} runs this, also one that the application's
 * own scripts start. So it acts in skein's application master only, and nothing that goes wrong in
 * it may break the process: then there are no notices, as without the agent.
 */
public final class Agent {
  static final String SITE = "elasticml-agent-site.xml";
  static final int HEARTBEAT_MS = 1000;
  static final int HEARTBEAT_MS_MIN = 100;

  private static final String SKEIN_MASTER = "com.anaconda.skein.ApplicationMaster";

  /** The class that made proxies before us, and still makes them for us. */
  static volatile String previousRpc;

  static volatile int heartbeatMs = HEARTBEAT_MS;

  private Agent() {}

  public static void premain(String options, Instrumentation instrumentation) {
    try {
      String command = System.getProperty("sun.java.command", "");
      if (command.startsWith(SKEIN_MASTER)) {
        heartbeatMs = heartbeat(options);
        System.setProperty("elasticml.agent.expiry.ms", Integer.toString(2 * heartbeatMs));
        Hadoop.configure();
      }
    } catch (Throwable failure) {
      say("off: " + failure);
    }
  }

  /** The heartbeat that the options ask for; the usual one where they ask for none. */
  static int heartbeat(String options) {
    if (options == null || options.trim().isEmpty()) {
      return HEARTBEAT_MS;
    }
    return Math.max(HEARTBEAT_MS_MIN, Integer.parseInt(options.trim()));
  }

  /** Write a line into the application master's log. */
  static void say(String what) {
    System.err.println("elasticml-agent: " + what);
  }

  /** A class of its own, so that {@code premain} catches it when Hadoop's classes are missing. */
  private static final class Hadoop {
    static void configure() {
      // Made first, because it registers yarn-default.xml and yarn-site.xml; the last resource wins.
      Configuration before = new YarnConfiguration();
      previousRpc =
          before.get(YarnConfiguration.IPC_RPC_IMPL, YarnConfiguration.DEFAULT_IPC_RPC_IMPL);
      Configuration.addDefaultResource(SITE);
      say("on, heartbeat " + heartbeatMs + " ms, over " + previousRpc);
    }
  }
}
