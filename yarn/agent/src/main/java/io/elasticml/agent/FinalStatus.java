package io.elasticml.agent;

import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;

/**
 * The final status of an application that must not be restarted.
 *
 * <p>Skein 0.8 unregisters only applications that have succeeded, or that are in their last attempt:
 * one that has failed for good, or was cancelled, would be restarted until its attempts are used
 * up. Such an application therefore reports success to skein, with its true status as a prefix of
 * the diagnostics, and the agent reports the true status to the ResourceManager.
 */
final class FinalStatus {
  /** Followed by a {@link FinalApplicationStatus}, {@link #END} and the diagnostics. */
  static final String BEGINNING = "elasticml.agent.end=";

  static final String END = ": ";

  private FinalStatus() {}

  /** Set the true status of a request, in place; other requests stay unchanged. Never throws. */
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
