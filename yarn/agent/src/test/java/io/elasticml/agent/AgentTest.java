package io.elasticml.agent;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.junit.Test;

public class AgentTest {
  @Test
  public void theHeartbeatIsTheDefaultUnlessRequested() {
    assertEquals(Agent.HEARTBEAT_MS, Agent.heartbeat(null));
    assertEquals(Agent.HEARTBEAT_MS, Agent.heartbeat(" "));
    assertEquals(500, Agent.heartbeat(" 500 "));
    assertEquals(Agent.HEARTBEAT_MS_MIN, Agent.heartbeat("1"));
  }

  @Test
  public void nothingHappensInAJvmThatIsNotSkeinsMaster() {
    Agent.premain("no number", null);
    assertFalse(
        new YarnConfiguration()
            .get(YarnConfiguration.IPC_RPC_IMPL)
            .equals(NoticeRpc.class.getName()));
  }

  @Test
  public void theSiteFileNamesTheRpcClass() {
    Configuration site = new Configuration(false);
    site.addResource(Agent.SITE);
    assertEquals(NoticeRpc.class.getName(), site.get(YarnConfiguration.IPC_RPC_IMPL));
  }
}
