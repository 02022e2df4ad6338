package io.elasticml.agent;

import java.util.AbstractMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Puts documents into skein's key-value store, from one daemon thread.
 *
 * <p>A document that waits is replaced by a newer one of the same key, so that no more than one a
 * key ever waits.
 */
final class Publisher implements Runnable {
  /** Responses seen from a thread that is not skein's before we say that there is no store. */
  private static final int SEARCHES_MAX = 100;

  private final Map<String, String> waiting = new LinkedHashMap<>();
  private SkeinStore store;
  private int searches;

  /** Publish a document soon; before there is a store it waits. */
  synchronized void offer(String key, String document) {
    waiting.remove(key); // a newer one queues behind what was offered before it
    waiting.put(key, document);
    notifyAll();
  }

  /** Find the store, from skein's allocator thread, and start to publish; once. */
  void startOnce() throws ReflectiveOperationException {
    if (store != null || searches > SEARCHES_MAX) {
      return;
    }
    store = SkeinStore.find(Thread.currentThread());
    searches++;
    if (store != null) {
      Thread thread = new Thread(this, "elasticml-notices");
      thread.setDaemon(true);
      thread.start();
    } else if (searches > SEARCHES_MAX) {
      Agent.say("no notices: found no application master of skein's in " + SEARCHES_MAX + " calls");
    }
  }

  /** The next document, oldest first; waits for one. */
  synchronized Map.Entry<String, String> take() throws InterruptedException {
    while (waiting.isEmpty()) {
      wait();
    }
    Iterator<Map.Entry<String, String>> oldest = waiting.entrySet().iterator();
    Map.Entry<String, String> document = new AbstractMap.SimpleImmutableEntry<>(oldest.next());
    oldest.remove();
    return document;
  }

  @Override
  public void run() {
    try {
      while (true) {
        Map.Entry<String, String> document = take();
        store.put(document.getKey(), document.getValue());
      }
    } catch (Throwable failure) {
      Agent.say("no notices any more: " + failure);
    }
  }
}
