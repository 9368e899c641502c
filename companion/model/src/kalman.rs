//! The extended Kalman filter over ln alpha, ln beta and ln gamma: one step, a pure function.
