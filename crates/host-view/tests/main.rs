//! The document of a host and its metrics, and what the manual has of them.

mod documents;
mod host;
mod jobs;
