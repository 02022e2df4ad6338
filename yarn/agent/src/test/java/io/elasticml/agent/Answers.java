package io.elasticml.agent;

import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerState;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionContract;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.PreemptionResourceRequest;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.StrictPreemptionContract;
import org.apache.hadoop.yarn.util.Records;

/** Answers of a ResourceManager, in Hadoop's own records. */
final class Answers {
  private Answers() {}

  static ContainerId container(int number) {
    ApplicationId application = ApplicationId.newInstance(1_700_000_000_000L, 7);
    return ContainerId.newContainerId(ApplicationAttemptId.newInstance(application, 1), number);
  }

  static AllocateResponse nothing() {
    AllocateResponse response = Records.newRecord(AllocateResponse.class);
    response.setCompletedContainersStatuses(Collections.<ContainerStatus>emptyList());
    response.setUpdatedNodes(Collections.<NodeReport>emptyList());
    return response;
  }

  static AllocateResponse negotiableMarks(int... numbers) {
    AllocateResponse response = nothing();
    ResourceRequest request =
        ResourceRequest.newInstance(Priority.newInstance(0), "*", Resource.newInstance(128, 1), 2);
    PreemptionResourceRequest requested = Records.newRecord(PreemptionResourceRequest.class);
    requested.setResourceRequest(request);
    PreemptionContract contract = Records.newRecord(PreemptionContract.class);
    contract.setResourceRequest(Collections.singletonList(requested));
    contract.setContainers(marked(numbers));
    PreemptionMessage message = Records.newRecord(PreemptionMessage.class);
    message.setContract(contract);
    response.setPreemptionMessage(message);
    return response;
  }

  static AllocateResponse strictMarks(int... numbers) {
    AllocateResponse response = nothing();
    StrictPreemptionContract contract = Records.newRecord(StrictPreemptionContract.class);
    contract.setContainers(marked(numbers));
    PreemptionMessage message = Records.newRecord(PreemptionMessage.class);
    message.setStrictContract(contract);
    response.setPreemptionMessage(message);
    return response;
  }

  static ContainerStatus ended(int number, int exitStatus, String diagnostics) {
    return ContainerStatus.newInstance(
        container(number), ContainerState.COMPLETE, diagnostics, exitStatus);
  }

  static AllocateResponse exits(ContainerStatus... statuses) {
    AllocateResponse response = nothing();
    response.setCompletedContainersStatuses(Arrays.asList(statuses));
    return response;
  }

  static AllocateResponse node(NodeState state, Integer timeoutS, String health) {
    AllocateResponse response = nothing();
    NodeReport report = Records.newRecord(NodeReport.class);
    report.setNodeId(NodeId.newInstance("host1", 45454));
    report.setNodeState(state);
    report.setHealthReport(health);
    if (timeoutS != null) {
      report.setDecommissioningTimeout(timeoutS);
    }
    List<NodeReport> reports = Collections.singletonList(report);
    response.setUpdatedNodes(reports);
    return response;
  }

  private static Set<PreemptionContainer> marked(int... numbers) {
    Set<PreemptionContainer> containers = new LinkedHashSet<>();
    for (int number : numbers) {
      PreemptionContainer container = Records.newRecord(PreemptionContainer.class);
      container.setId(container(number));
      containers.add(container);
    }
    return containers;
  }
}
