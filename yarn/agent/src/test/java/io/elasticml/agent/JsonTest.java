package io.elasticml.agent;

import static org.junit.Assert.assertEquals;

import java.util.Arrays;
import org.junit.Test;

public class JsonTest {
  @Test
  public void valuesKeepTheirKind() {
    assertEquals(
        "{\"n\":-7,\"yes\":true,\"none\":null,\"list\":[{},[1,2]]}",
        Json.object()
            .with("n", -7L)
            .with("yes", true)
            .with("none", null)
            .with("list", Json.array().add(Json.object()).add(Json.array(Arrays.asList("1", "2"))))
            .toString());
  }

  @Test
  public void everythingOutsidePrintableAsciiIsEscaped() {
    assertEquals(
        "{\"q\":\"\\\"\\\\\\u000a\\u00e9\\ud83d\\ude00\"}",
        Json.object().with("q", "\"\\\n\u00e9\ud83d\ude00").toString());
  }

  @Test
  public void halfASurrogatePairIsReplaced() {
    assertEquals("{\"q\":\"\\ufffda\"}", Json.object().with("q", "\ud83da").toString());
    assertEquals("{\"q\":\"a\\ufffd\"}", Json.object().with("q", "a\ude00").toString());
  }

  @Test
  public void cutsBetweenCharacters() {
    assertEquals("", Json.cut(null, 3));
    assertEquals("abc", Json.cut("abc", 3));
    assertEquals("ab", Json.cut("abc", 2));
    assertEquals("ab", Json.cut("ab\ud83d\ude00", 3));
  }

  @Test
  public void keepsTheEndBetweenCharacters() {
    assertEquals("", Json.tail(null, 3));
    assertEquals("abc", Json.tail("abc", 3));
    assertEquals("bc", Json.tail("abc", 2));
    assertEquals("bc", Json.tail("a\ud83d\ude00bc", 3));
    assertEquals("", Json.tail("abc", 0));
  }
}
