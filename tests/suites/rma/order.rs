//! What a signal proves.
