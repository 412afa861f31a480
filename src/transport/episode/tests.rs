//! A sender and a receiver over a simulated fabric: rails die at any time, messages are lost with
//! the rails that carried them, or repeated. A model of the receiver's memory shows that every
//! message arrives as it was sent, and that no byte is written into a buffer that was given back.
