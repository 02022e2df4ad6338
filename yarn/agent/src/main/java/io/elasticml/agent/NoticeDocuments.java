package io.elasticml.agent;

import java.util.ArrayDeque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionContract;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.PreemptionResourceRequest;
import org.apache.hadoop.yarn.api.records.Resource;

/**
 * The ResourceManager's messages so far, as a few JSON documents.
 *
 * <p>Each document is the whole state of its key, so that a reader who starts late, or misses a
 * replaced document, loses nothing. Times {@code t}, {@code first} and {@code last}
 * are milliseconds of this machine's clock.
 */
final class NoticeDocuments {
  static final String HELLO = "elasticml.agent.hello";
  static final String MARKS = "elasticml.agent.marks";
  static final String EXITS = "elasticml.agent.exits";
  static final String NODES = "elasticml.agent.nodes";

  /** Incremented when a reader of the former documents would misread these. */
  static final int FORMAT = 1;

  /** Number of ended containers, and of node changes, that are kept; a batch is kept whole. */
  static final int ITEMS_MAX = 256;

  /** Characters of a text that are kept: the last ones of diagnostics, which have the reason. */
  static final int TEXT_MAX = 500;

  private final Map<String, Mark> marks = new LinkedHashMap<>();
  private final Items exits = new Items();
  private final Items nodes = new Items();
  private long marksSeq;

  /** A container that the ResourceManager may pre-empt. */
  private static final class Mark {
    final long firstMs;
    long lastMs;
    int count;
    boolean isStrict;

    Mark(long nowMs) {
      firstMs = nowMs;
    }
  }

  /** Numbered items, oldest first. */
  private static final class Items {
    private final ArrayDeque<String> items = new ArrayDeque<>();
    private long seq;

    Json next(long nowMs) {
      return Json.object().with("seq", ++seq).with("t", nowMs);
    }

    void add(Json item) {
      items.add(item.toString());
    }

    String document(int batch) {
      while (items.size() > Math.max(ITEMS_MAX, batch)) {
        items.remove();
      }
      return Json.object().with("v", FORMAT).with("items", Json.array(items)).toString();
    }
  }

  /**
   * Process one response.
   *
   * @return the documents that it changes, by key, in the order in which to publish them
   */
  Map<String, String> read(AllocateResponse response, long nowMs) {
    Map<String, String> documents = new LinkedHashMap<>();
    Json requested = readMarks(response.getPreemptionMessage(), nowMs);
    if (requested != null) {
      documents.put(MARKS, marksDocument(requested, nowMs));
    }
    List<ContainerStatus> completed = response.getCompletedContainersStatuses();
    if (!completed.isEmpty()) {
      boolean isMarkGone = readExits(completed, nowMs);
      documents.put(EXITS, exits.document(completed.size()));
      if (isMarkGone) {
        documents.put(MARKS, marksDocument(requested, nowMs));
      }
    }
    List<NodeReport> updated = response.getUpdatedNodes();
    if (!updated.isEmpty()) {
      for (NodeReport node : updated) {
        nodes.add(
            nodes
                .next(nowMs)
                .with("node", String.valueOf(node.getNodeId()))
                .with("state", String.valueOf(node.getNodeState()))
                .with("timeout_s", decommissioningTimeoutS(node))
                .with("health", Json.cut(node.getHealthReport(), TEXT_MAX)));
      }
      documents.put(NODES, nodes.document(updated.size()));
    }
    return documents;
  }

  /** Return the requested resources as an array; null if nothing is marked. */
  private Json readMarks(PreemptionMessage message, long nowMs) {
    if (message == null) {
      return null;
    }
    Json requested = Json.array();
    boolean isMarked = false;
    if (message.getStrictContract() != null) {
      for (PreemptionContainer container : message.getStrictContract().getContainers()) {
        mark(container, true, nowMs);
        isMarked = true;
      }
    }
    PreemptionContract contract = message.getContract();
    if (contract != null && contract.getContainers() != null) {
      for (PreemptionContainer container : contract.getContainers()) {
        mark(container, false, nowMs);
        isMarked = true;
      }
    }
    if (contract != null && contract.getResourceRequest() != null) {
      for (PreemptionResourceRequest request : contract.getResourceRequest()) {
        Resource capability = request.getResourceRequest().getCapability();
        requested.add(
            Json.object()
                .with("n", request.getResourceRequest().getNumContainers())
                .with("mib", capability.getMemorySize())
                .with("vcores", capability.getVirtualCores())
                .with("where", request.getResourceRequest().getResourceName()));
      }
    }
    return isMarked ? requested : null;
  }

  private void mark(PreemptionContainer container, boolean isStrict, long nowMs) {
    String id = String.valueOf(container.getId());
    Mark mark = marks.get(id);
    if (mark == null) {
      mark = new Mark(nowMs);
      marks.put(id, mark);
    }
    mark.lastMs = nowMs;
    mark.count++;
    mark.isStrict = isStrict;
  }

  /** Return whether a marked container is among those that ended. */
  private boolean readExits(List<ContainerStatus> completed, long nowMs) {
    boolean isMarkGone = false;
    for (ContainerStatus status : completed) {
      String id = String.valueOf(status.getContainerId());
      exits.add(
          exits
              .next(nowMs)
              .with("id", id)
              .with("status", status.getExitStatus())
              .with("message", Json.tail(status.getDiagnostics(), TEXT_MAX)));
      isMarkGone |= marks.remove(id) != null;
    }
    return isMarkGone;
  }

  private String marksDocument(Json requested, long nowMs) {
    Json list = Json.array();
    for (Map.Entry<String, Mark> entry : marks.entrySet()) {
      Mark mark = entry.getValue();
      list.add(
          Json.object()
              .with("id", entry.getKey())
              .with("first", mark.firstMs)
              .with("last", mark.lastMs)
              .with("count", mark.count)
              .with("strict", mark.isStrict));
    }
    return Json.object()
        .with("v", FORMAT)
        .with("seq", ++marksSeq)
        .with("t", nowMs)
        .with("marks", list)
        .with("resources", requested == null ? Json.array() : requested)
        .toString();
  }

  /** Return the seconds until a decommissioned node stops; known from Hadoop 3.1 on. */
  private static Integer decommissioningTimeoutS(NodeReport node) {
    try {
      return (Integer) NodeReport.class.getMethod("getDecommissioningTimeout").invoke(node);
    } catch (ReflectiveOperationException olderHadoop) {
      return null;
    }
  }
}
