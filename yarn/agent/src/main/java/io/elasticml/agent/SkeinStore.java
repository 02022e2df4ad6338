package io.elasticml.agent;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;

/**
 * The key-value store of skein 0.8's application master, written to from inside its process.
 *
 * <p>Values go through the handler that serves clients, so that skein's lock is held and watchers of
 * the key are notified. Reflection accesses only classes of the unnamed module, which needs no
 * {@code --add-opens}.
 */
final class SkeinStore {
  private static final String PACKAGE = "com.anaconda.skein.";

  private final Object service;
  private final Object observer;
  private final Object request;
  private final Method putKey;
  private final Method clear;
  private final Method setKey;
  private final Method setValue;
  private final Method build;
  private final Method copyFrom;
  private volatile Object error;

  /**
   * Find the store from a thread that is an inner class of the application master, such as its
   * allocator.
   *
   * @return null for other threads
   */
  static SkeinStore find(Thread thread) throws ReflectiveOperationException {
    for (Field field : thread.getClass().getDeclaredFields()) {
      if (field.getType().getName().equals(PACKAGE + "ApplicationMaster")) {
        field.setAccessible(true);
        return new SkeinStore(field.get(thread));
      }
    }
    return null;
  }

  private SkeinStore(Object master) throws ReflectiveOperationException {
    ClassLoader loader = master.getClass().getClassLoader();
    Class<?> serviceClass =
        Class.forName(PACKAGE + "ApplicationMaster$AppMasterImpl", false, loader);
    Class<?> requestClass = Class.forName(PACKAGE + "Msg$PutKeyRequest", true, loader);
    Class<?> observerClass =
        Class.forName(PACKAGE + "shaded.io.grpc.stub.StreamObserver", true, loader);
    Class<?> bytesClass =
        Class.forName(PACKAGE + "shaded.com.google.protobuf.ByteString", true, loader);
    // Its only field is the enclosing application master, so a second instance does no harm.
    Constructor<?> constructor = serviceClass.getDeclaredConstructor(master.getClass());
    constructor.setAccessible(true);
    service = constructor.newInstance(master);
    request = requestClass.getMethod("newBuilder").invoke(null);
    clear = request.getClass().getMethod("clear");
    setKey = request.getClass().getMethod("setKey", String.class);
    setValue = request.getClass().getMethod("setValue", bytesClass);
    build = request.getClass().getMethod("build");
    copyFrom = bytesClass.getMethod("copyFrom", byte[].class);
    putKey = serviceClass.getMethod("putKey", requestClass, observerClass);
    putKey.setAccessible(true); // a public method of a class that is not public
    observer =
        Proxy.newProxyInstance(
            loader,
            new Class<?>[] {observerClass},
            new InvocationHandler() {
              @Override
              public Object invoke(Object self, Method method, Object[] arguments) {
                if (method.getName().equals("onError")) {
                  error = arguments[0];
                }
                return null;
              }
            });
  }

  /** Put one value; from one thread at a time. */
  void put(String key, String value) throws ReflectiveOperationException {
    error = null;
    clear.invoke(request);
    setKey.invoke(request, key);
    byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
    setValue.invoke(request, copyFrom.invoke(null, (Object) bytes));
    putKey.invoke(service, build.invoke(request), observer);
    if (error != null) {
      Agent.say("could not put " + key + ": " + error);
    }
  }
}
