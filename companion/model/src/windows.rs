//! Learning from windows alone: the Kalman filter's steps, its restarts and its states.
