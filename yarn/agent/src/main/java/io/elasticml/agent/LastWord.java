package io.elasticml.agent;

import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;

/**
 * How an application ends that shall not begin again.
 *
 * <p>Skein 0.8 unregisters only applications that have succeeded, or that are in their last attempt:
 * one that has failed for good, or was cancelled, would begin anew until its attempts are used up.
 * So such an application tells skein that it has succeeded, with its true status in front of what
 * it has to say, and the ResourceManager is told that one.
 */
final class LastWord {
  /** Followed by a {@link FinalApplicationStatus}, {@link #END} and the diagnostics. */
  static final String BEGINNING = "elasticml.agent.end=";

  static final String END = ": ";

  private LastWord() {}

  /** Put the true status into a request, in place; others are left as they are. Never throws. */
  static void putTrueStatus(FinishApplicationMasterRequest request) {
    try {
      String text = request.getDiagnostics();
      if (text == null || !text.startsWith(BEGINNING)) {
        return;
      }
      int end = text.indexOf(END);
      String status = text.substring(BEGINNING.length(), end);
      request.setFinalApplicationStatus(FinalApplicationStatus.valueOf(status));
      request.setDiagnostics(text.substring(end + END.length()));
    } catch (Throwable failure) {
      Agent.say("the application's true status is not known: " + failure);
    }
  }
}
