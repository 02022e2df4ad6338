package io.elasticml.agent;

import java.util.Map;
import org.apache.hadoop.util.VersionInfo;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;

/** Publishes the content of allocate responses in skein's key-value store, from its own thread. */
final class Observer {
  private static final NoticeDocuments DOCUMENTS = new NoticeDocuments();
  private static final Publisher PUBLISHER = new Publisher();

  private static boolean failed;
  private static boolean greeted;

  private Observer() {}

  /** Called between the ResourceManager's answer and skein's reading of it: quick, never throws. */
  static synchronized void see(AllocateResponse response) {
    if (failed) {
      return;
    }
    try {
      long nowMs = System.currentTimeMillis();
      if (!greeted) {
        greeted = true;
        PUBLISHER.offer(NoticeDocuments.HELLO, hello(nowMs));
      }
      for (Map.Entry<String, String> document : DOCUMENTS.read(response, nowMs).entrySet()) {
        PUBLISHER.offer(document.getKey(), document.getValue());
      }
      // Skein calls this from its allocator thread, the only one from which the store can be found.
      PUBLISHER.startOnce();
      CompletedOrder.putKilledByMasterLast(response.getCompletedContainersStatuses());
    } catch (Throwable failure) {
      failed = true;
      Agent.say("no notices any more: " + failure);
    }
  }

  private static String hello(long nowMs) {
    return Json.object()
        .with("v", NoticeDocuments.FORMAT)
        .with("t", nowMs)
        .with("heartbeat_ms", Agent.heartbeatMs)
        .with("end", FinalStatus.BEGINNING)
        .with("hadoop", VersionInfo.getVersion())
        .with("java", System.getProperty("java.version"))
        .toString();
  }
}
