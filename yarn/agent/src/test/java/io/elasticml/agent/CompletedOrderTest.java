package io.elasticml.agent;

import static org.junit.Assert.assertEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.junit.Test;

public class CompletedOrderTest {
  private static List<Integer> statuses(AllocateResponse response) {
    List<Integer> statuses = new ArrayList<>();
    for (ContainerStatus status : response.getCompletedContainersStatuses()) {
      statuses.add(status.getExitStatus());
    }
    return statuses;
  }

  @Test
  public void containersThatStopSkeinsReadingComeLastInTheResponseItself() {
    AllocateResponse response =
        Answers.exits(
            Answers.ended(1, 0, ""),
            Answers.ended(2, -105, ""),
            Answers.ended(3, -102, ""),
            Answers.ended(4, -105, ""),
            Answers.ended(5, 1, ""));
    CompletedOrder.putKilledByMasterLast(response.getCompletedContainersStatuses());
    assertEquals(Arrays.asList(0, -102, 1, -105, -105), statuses(response));
  }

  @Test
  public void otherContainersKeepTheirOrder() {
    AllocateResponse response = Answers.exits(Answers.ended(1, -102, ""), Answers.ended(2, 0, ""));
    CompletedOrder.putKilledByMasterLast(response.getCompletedContainersStatuses());
    assertEquals(Arrays.asList(-102, 0), statuses(response));
  }
}
