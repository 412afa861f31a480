//! Texts of foreign origin, made safe for a log line.

pub use nccl_net_mpib_agent_iface::text::printable;

/// Returns the longest head of `text` with at most `limit` bytes.
pub(crate) fn head(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_is_as_long_as_it_may_be(text: String, limit in 0usize..40) {
            let head = head(&text, limit);
            prop_assert!(text.starts_with(head) && head.len() <= limit);
            // The next character does not fit.
            let next = text[head.len()..].chars().next().map_or(limit + 1, |c| head.len() + c.len_utf8());
            prop_assert!(next > limit);
        }
    }
}
