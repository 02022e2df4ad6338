package io.elasticml.agent;

import java.util.AbstractMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Puts documents into skein's key-value store, from one daemon thread.
 *
 * <p>A waiting document is replaced by a newer one of the same key, so at most one per key waits.
 */
final class Publisher implements Runnable {
  /** Responses seen from threads that are not skein's before the store is reported missing. */
  private static final int SEARCHES_MAX = 100;

  private final Map<String, String> waiting = new LinkedHashMap<>();
  private SkeinStore store;
  private int searches;

  /** Queue a document for publication; it waits until there is a store. */
  synchronized void offer(String key, String document) {
    waiting.remove(key); // a newer one queues behind those offered before it
    waiting.put(key, document);
    notifyAll();
  }

  /** Find the store, from skein's allocator thread, and start publishing; once. */
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

  /** Return the next document, oldest first; wait for one. */
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
