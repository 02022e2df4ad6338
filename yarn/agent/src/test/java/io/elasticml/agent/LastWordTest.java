package io.elasticml.agent;

import static org.junit.Assert.assertEquals;

import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.junit.Test;

public class LastWordTest {
  private static FinishApplicationMasterRequest told(String diagnostics) {
    FinishApplicationMasterRequest request =
        FinishApplicationMasterRequest.newInstance(
            FinalApplicationStatus.SUCCEEDED, diagnostics, null);
    LastWord.putTrueStatus(request);
    return request;
  }

  @Test
  public void theStatusInFrontOfTheDiagnosticsIsTheTrueOne() {
    FinishApplicationMasterRequest request =
        told("elasticml.agent.end=KILLED: cancelled: 3 rounds; the run is in hdfs://nn:8020/run");
    assertEquals(FinalApplicationStatus.KILLED, request.getFinalApplicationStatus());
    assertEquals(
        "cancelled: 3 rounds; the run is in hdfs://nn:8020/run", request.getDiagnostics());
    assertEquals(
        FinalApplicationStatus.FAILED,
        told("elasticml.agent.end=FAILED: no data").getFinalApplicationStatus());
  }

  @Test
  public void othersAreLeftAsTheyAre() {
    for (String diagnostics : new String[] {"done: 300 rounds", "elasticml.agent.end=x: y", null}) {
      FinishApplicationMasterRequest request = told(diagnostics);
      assertEquals(FinalApplicationStatus.SUCCEEDED, request.getFinalApplicationStatus());
      assertEquals(diagnostics == null ? "" : diagnostics, String.valueOf(request.getDiagnostics()));
    }
  }
}
