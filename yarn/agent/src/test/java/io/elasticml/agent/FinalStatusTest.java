package io.elasticml.agent;

import static org.junit.Assert.assertEquals;

import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.junit.Test;

public class FinalStatusTest {
  private static FinishApplicationMasterRequest actual(String diagnostics) {
    FinishApplicationMasterRequest request =
        FinishApplicationMasterRequest.newInstance(
            FinalApplicationStatus.SUCCEEDED, diagnostics, null);
    FinalStatus.putTrueStatus(request);
    return request;
  }

  @Test
  public void theStatusInFrontOfTheDiagnosticsIsTheReportedOne() {
    FinishApplicationMasterRequest request =
        actual("elasticml.agent.end=KILLED: cancelled: 3 rounds; the run is in hdfs://nn:8020/run");
    assertEquals(FinalApplicationStatus.KILLED, request.getFinalApplicationStatus());
    assertEquals(
        "cancelled: 3 rounds; the run is in hdfs://nn:8020/run", request.getDiagnostics());
    assertEquals(
        FinalApplicationStatus.FAILED,
        actual("elasticml.agent.end=FAILED: no data").getFinalApplicationStatus());
  }

  @Test
  public void otherRequestsStayUnchanged() {
    for (String diagnostics : new String[] {"done: 300 rounds", "elasticml.agent.end=x: y", null}) {
      FinishApplicationMasterRequest request = actual(diagnostics);
      assertEquals(FinalApplicationStatus.SUCCEEDED, request.getFinalApplicationStatus());
      assertEquals(diagnostics == null ? "" : diagnostics, String.valueOf(request.getDiagnostics()));
    }
  }
}
