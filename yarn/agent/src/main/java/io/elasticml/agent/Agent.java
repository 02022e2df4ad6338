package io.elasticml.agent;

import java.lang.instrument.Instrumentation;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/**
 * Entry point: {@code -javaagent:$PWD/elasticml-agent.jar[=heartbeat_ms]}.
 *
 * <p>No byte code is rewritten. {@code premain} adds a resource on top of Hadoop's configuration, in
 * which {@code yarn.ipc.rpc.class}, an extension point of YARN, names {@link NoticeRpc}.
 *
 * <p>Every JVM that inherits {@code JAVA_TOOL_OPTIONS} runs this, including those that the
 * application's own scripts start. It therefore acts in skein's application master only, and an
 * error in it must not break the process: then there are no notices, as without the agent.
 */
public final class Agent {
  static final String SITE = "elasticml-agent-site.xml";
  static final int HEARTBEAT_MS = 1000;
  static final int HEARTBEAT_MS_MIN = 100;

  private static final String SKEIN_MASTER = "com.anaconda.skein.ApplicationMaster";

  /** The class that made proxies before; it still makes the proxies that the agent wraps. */
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

  /** Return the heartbeat that the options request; by default the usual one. */
  static int heartbeat(String options) {
    if (options == null || options.trim().isEmpty()) {
      return HEARTBEAT_MS;
    }
    return Math.max(HEARTBEAT_MS_MIN, Integer.parseInt(options.trim()));
  }

  /** Write a line to the application master's log. */
  static void say(String what) {
    System.err.println("elasticml-agent: " + what);
  }

  /** Separate, so that {@code premain} catches the error when Hadoop's classes are missing. */
  private static final class Hadoop {
    static void configure() {
      // Created first: it registers yarn-default.xml and yarn-site.xml, and the last resource wins.
      Configuration before = new YarnConfiguration();
      previousRpc =
          before.get(YarnConfiguration.IPC_RPC_IMPL, YarnConfiguration.DEFAULT_IPC_RPC_IMPL);
      Configuration.addDefaultResource(SITE);
      say("on, heartbeat " + heartbeatMs + " ms, over " + previousRpc);
    }
  }
}
