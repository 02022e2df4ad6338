package io.elasticml.agent;

import java.io.Closeable;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.ipc.RPC;
import org.apache.hadoop.ipc.Server;
import org.apache.hadoop.security.token.SecretManager;
import org.apache.hadoop.security.token.TokenIdentifier;
import org.apache.hadoop.yarn.api.ApplicationMasterProtocol;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.ipc.YarnRPC;

/**
 * The cluster's own {@link YarnRPC}, except that {@link Observer} first sees the
 * ResourceManager's answers to the application master's heartbeats, and {@link FinalStatus} sets the
 * status with which the application ends.
 */
public final class NoticeRpc extends YarnRPC {
  private final YarnRPC inner;

  public NoticeRpc() throws ReflectiveOperationException {
    this(previous());
  }

  NoticeRpc(YarnRPC inner) {
    this.inner = inner;
  }

  private static YarnRPC previous() throws ReflectiveOperationException {
    return (YarnRPC) Class.forName(Agent.previousRpc).getDeclaredConstructor().newInstance();
  }

  @Override
  @SuppressWarnings("rawtypes") // as in the class that it overrides
  public Object getProxy(Class protocol, InetSocketAddress address, Configuration conf) {
    Object proxy = inner.getProxy(protocol, address, conf);
    return protocol == ApplicationMasterProtocol.class ? observed(proxy) : proxy;
  }

  @Override
  public void stopProxy(Object proxy, Configuration conf) {
    inner.stopProxy(proxy, conf);
  }

  @Override
  @SuppressWarnings("rawtypes")
  public Server getServer(
      Class protocol,
      Object instance,
      InetSocketAddress address,
      Configuration conf,
      SecretManager<? extends TokenIdentifier> secretManager,
      int handlers,
      String portRange) {
    return inner.getServer(
        protocol, instance, address, conf, secretManager, handlers, portRange);
  }

  /** Return the same proxy with its allocate responses observed. */
  static Object observed(final Object proxy) {
    InvocationHandler handler =
        new InvocationHandler() {
          @Override
          public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
            // A method of Closeable, not of the protocol: it stops the proxy.
            if (method.getDeclaringClass() == Closeable.class) {
              RPC.stopProxy(proxy);
              return null;
            }
            if (arguments != null && arguments[0] instanceof FinishApplicationMasterRequest) {
              FinalStatus.putTrueStatus((FinishApplicationMasterRequest) arguments[0]);
            }
            Object answer;
            try {
              answer = method.invoke(proxy, arguments);
            } catch (InvocationTargetException failure) {
              throw failure.getCause(); // callers decide by its class whether to retry
            }
            if (answer instanceof AllocateResponse) {
              Observer.see((AllocateResponse) answer);
            }
            return answer;
          }
        };
    return Proxy.newProxyInstance(
        NoticeRpc.class.getClassLoader(),
        new Class<?>[] {ApplicationMasterProtocol.class, Closeable.class},
        handler);
  }
}
