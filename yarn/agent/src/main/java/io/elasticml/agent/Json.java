package io.elasticml.agent;

/**
 * JSON text under construction: an object or an array, in ASCII.
 *
 * <p>Implemented here because the agent must not bring a library into the application master, and
 * Hadoop's own JSON library differs between releases.
 */
final class Json {
  private final StringBuilder text = new StringBuilder();
  private final char end;

  private Json(char start, char end) {
    text.append(start);
    this.end = end;
  }

  static Json object() {
    return new Json('{', '}');
  }

  static Json array() {
    return new Json('[', ']');
  }

  /** Return an array of texts that are JSON already. */
  static Json array(Iterable<String> items) {
    Json array = array();
    for (String item : items) {
      array.next().text.append(item);
    }
    return array;
  }

  /** Add a member to an object; a value is a text, a number, a boolean, JSON, or null. */
  Json with(String name, Object value) {
    next();
    quote(name);
    text.append(':');
    if (value == null || value instanceof Number || value instanceof Boolean) {
      text.append(value);
    } else if (value instanceof Json) {
      text.append(value.toString());
    } else {
      quote(value.toString());
    }
    return this;
  }

  /** Add an element to an array. */
  Json add(Json element) {
    next().text.append(element.toString());
    return this;
  }

  @Override
  public String toString() {
    return text.toString() + end;
  }

  /** Return at most {@code lengthMax} characters from the start, no half surrogate pair. */
  static String cut(String whole, int lengthMax) {
    if (whole == null) {
      return "";
    }
    if (whole.length() <= lengthMax) {
      return whole;
    }
    boolean splitsPair = Character.isHighSurrogate(whole.charAt(lengthMax - 1));
    return whole.substring(0, splitsPair ? lengthMax - 1 : lengthMax);
  }

  /** Return at most {@code lengthMax} characters from the end, no half surrogate pair. */
  static String tail(String whole, int lengthMax) {
    if (whole == null) {
      return "";
    }
    int start = Math.max(0, whole.length() - lengthMax);
    boolean splitsPair =
        start > 0 && start < whole.length() && Character.isLowSurrogate(whole.charAt(start));
    return whole.substring(splitsPair ? start + 1 : start);
  }

  private Json next() {
    if (text.length() > 1) {
      text.append(',');
    }
    return this;
  }

  private void quote(String value) {
    text.append('"');
    for (int i = 0; i < value.length(); i++) {
      char c = value.charAt(i);
      if (c == '"' || c == '\\') {
        text.append('\\').append(c);
      } else if (c >= ' ' && c <= '~') {
        text.append(c);
      } else {
        text.append(String.format("\\u%04x", (int) (isAlone(value, i) ? '\ufffd' : c)));
      }
    }
    text.append('"');
  }

  /** Return whether a surrogate has no partner, so that it encodes no character. */
  private static boolean isAlone(String value, int i) {
    char c = value.charAt(i);
    if (Character.isHighSurrogate(c)) {
      return i + 1 == value.length() || !Character.isLowSurrogate(value.charAt(i + 1));
    }
    return Character.isLowSurrogate(c)
        && (i == 0 || !Character.isHighSurrogate(value.charAt(i - 1)));
  }
}
