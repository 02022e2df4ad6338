package io.elasticml.agent;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.fail;

import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import org.apache.hadoop.yarn.api.ApplicationMasterProtocol;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.junit.Test;

public class NoticeRpcTest {
  private static ApplicationMasterProtocol answering(final Object answer) {
    InvocationHandler handler =
        new InvocationHandler() {
          @Override
          public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
            if (answer instanceof Throwable) {
              throw (Throwable) answer;
            }
            return answer;
          }
        };
    Object proxy =
        Proxy.newProxyInstance(
            NoticeRpcTest.class.getClassLoader(),
            new Class<?>[] {ApplicationMasterProtocol.class},
            handler);
    return (ApplicationMasterProtocol) NoticeRpc.observed(proxy);
  }

  @Test
  public void theResponseReachesTheCaller() throws Exception {
    AllocateResponse response = Answers.exits(Answers.ended(1, -105, ""), Answers.ended(2, 0, ""));
    AllocateResponse got = answering(response).allocate(AllocateRequest.newBuilder().build());
    assertSame(response, got);
    assertEquals(0, got.getCompletedContainersStatuses().get(0).getExitStatus());
  }

  @Test
  public void anErrorReachesTheCallerUnchanged() throws Exception {
    IOException error = new IOException("connection refused");
    try {
      answering(error).allocate(AllocateRequest.newBuilder().build());
      fail("no error");
    } catch (IOException got) {
      assertSame(error, got);
    }
  }
}
