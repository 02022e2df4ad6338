package io.elasticml.agent;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.ContainerStatus;

/**
 * The order in which skein reads ended containers.
 *
 * <p>Skein 0.8 stops reading a batch at the first container that was killed by the application
 * master (status -105), instead of continuing with the next one: containers behind it in the same
 * batch would be RUNNING for ever. Those with that status are therefore moved to the end.
 */
final class CompletedOrder {
  private CompletedOrder() {}

  /** Sort in place: the response returns its own list. */
  static void putKilledByMasterLast(List<ContainerStatus> completed) {
    List<ContainerStatus> last = new ArrayList<>();
    List<ContainerStatus> first = new ArrayList<>();
    for (ContainerStatus status : completed) {
      boolean isKilledByMaster =
          status.getExitStatus() == ContainerExitStatus.KILLED_BY_APPMASTER;
      (isKilledByMaster ? last : first).add(status);
    }
    if (last.isEmpty() || first.isEmpty()) {
      return;
    }
    first.addAll(last);
    for (int i = 0; i < first.size(); i++) {
      completed.set(i, first.get(i));
    }
  }
}
