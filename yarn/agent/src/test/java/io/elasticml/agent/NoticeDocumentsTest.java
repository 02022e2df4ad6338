package io.elasticml.agent;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.junit.Test;

public class NoticeDocumentsTest {
  private static final String ID = "container_1700000000000_0007_01_00000";

  private final NoticeDocuments documents = new NoticeDocuments();

  @Test
  public void anEmptyResponseChangesNothing() {
    assertEquals(Collections.emptyMap(), documents.read(Answers.nothing(), 5));
  }

  @Test
  public void aNegotiableMarkNamesContainerAndRequestedResources() {
    assertEquals(
        "{\"v\":1,\"seq\":1,\"t\":5,\"marks\":[{\"id\":\"" + ID + "2\",\"first\":5,\"last\":5,"
            + "\"count\":1,\"strict\":false}],"
            + "\"resources\":[{\"n\":2,\"mib\":128,\"vcores\":1,\"where\":\"*\"}]}",
        documents.read(Answers.negotiableMarks(2), 5).get(NoticeDocuments.MARKS));
  }

  @Test
  public void aStrictMarkIsRecordedAsStrict() {
    assertEquals(
        "{\"v\":1,\"seq\":1,\"t\":5,\"marks\":[{\"id\":\"" + ID + "2\",\"first\":5,\"last\":5,"
            + "\"count\":1,\"strict\":true}],\"resources\":[]}",
        documents.read(Answers.strictMarks(2), 5).get(NoticeDocuments.MARKS));
  }

  @Test
  public void aSecondMarkOfAContainerCountsAndKeepsItsFirstTime() {
    documents.read(Answers.strictMarks(2), 5);
    String second = documents.read(Answers.strictMarks(2, 3), 900).get(NoticeDocuments.MARKS);
    assertEquals(
        "{\"v\":1,\"seq\":2,\"t\":900,\"marks\":[{\"id\":\"" + ID + "2\",\"first\":5,"
            + "\"last\":900,\"count\":2,\"strict\":true},{\"id\":\"" + ID + "3\",\"first\":900,"
            + "\"last\":900,\"count\":1,\"strict\":true}],\"resources\":[]}",
        second);
  }

  @Test
  public void anExitIsReportedAndThenRemovesTheMark() {
    documents.read(Answers.strictMarks(2), 5);
    Map<String, String> published =
        documents.read(Answers.exits(Answers.ended(2, -102, "Container preempted by scheduler")), 9);
    assertEquals(
        Arrays.asList(NoticeDocuments.EXITS, NoticeDocuments.MARKS),
        new ArrayList<>(published.keySet()));
    assertEquals(
        "{\"v\":1,\"items\":[{\"seq\":1,\"t\":9,\"id\":\"" + ID + "2\",\"status\":-102,"
            + "\"message\":\"Container preempted by scheduler\"}]}",
        published.get(NoticeDocuments.EXITS));
    assertEquals(
        "{\"v\":1,\"seq\":2,\"t\":9,\"marks\":[],\"resources\":[]}",
        published.get(NoticeDocuments.MARKS));
  }

  @Test
  public void anExitOfAnUnmarkedContainerKeepsTheMarks() {
    documents.read(Answers.strictMarks(2), 5);
    assertEquals(
        Collections.singleton(NoticeDocuments.EXITS),
        documents.read(Answers.exits(Answers.ended(3, 0, "")), 9).keySet());
  }

  @Test
  public void oldExitsAreDroppedButABatchStaysWhole() {
    ContainerStatus[] batch = new ContainerStatus[NoticeDocuments.ITEMS_MAX + 10];
    for (int i = 0; i < batch.length; i++) {
      batch[i] = Answers.ended(i, 1, "");
    }
    String whole = documents.read(Answers.exits(batch), 1).get(NoticeDocuments.EXITS);
    assertTrue(whole.startsWith("{\"v\":1,\"items\":[{\"seq\":1,"));
    String after =
        documents.read(Answers.exits(Answers.ended(1, 1, "")), 2).get(NoticeDocuments.EXITS);
    assertTrue(after, after.startsWith("{\"v\":1,\"items\":[{\"seq\":12,"));
  }

  @Test
  public void aNodeThatIsDecommissionedHasATimeout() {
    assertEquals(
        "{\"v\":1,\"items\":[{\"seq\":1,\"t\":5,\"node\":\"host1:45454\","
            + "\"state\":\"DECOMMISSIONING\",\"timeout_s\":15,\"health\":\"\"}]}",
        documents
            .read(Answers.node(NodeState.DECOMMISSIONING, 15, ""), 5)
            .get(NoticeDocuments.NODES));
  }

  @Test
  public void anUnhealthyNodeHasAReasonAndNoTimeout() {
    String published =
        documents
            .read(Answers.node(NodeState.UNHEALTHY, null, "\"/data\" full"), 5)
            .get(NoticeDocuments.NODES);
    assertTrue(published, published.contains("\"state\":\"UNHEALTHY\",\"timeout_s\":null"));
    assertTrue(published, published.contains("\"health\":\"\\\"/data\\\" full\""));
  }
}
