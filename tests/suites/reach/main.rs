//! Which way a connection takes on networks of many shapes.

mod infiniband;
mod islands;
mod many_networks;
mod mesh;
mod reported_topologies;
mod routed;
mod routes;
mod search;
mod subnets;
mod util;
