package io.elasticml.agent;

import static org.junit.Assert.assertEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.Test;

public class PublisherTest {
  @Test
  public void onlyTheNewestDocumentOfAKeyWaits() throws Exception {
    Publisher publisher = new Publisher();
    publisher.offer("marks", "1");
    publisher.offer("exits", "2");
    publisher.offer("marks", "3");
    List<String> taken = new ArrayList<>();
    taken.add(publisher.take().toString());
    taken.add(publisher.take().toString());
    assertEquals(Arrays.asList("exits=2", "marks=3"), taken);
  }

  @Test
  public void threadsOutsideSkeinHaveNoStore() throws Exception {
    assertEquals(null, SkeinStore.find(Thread.currentThread()));
  }
}
