// Package dataplane moves packets between devices and the packages that decide about
// them: it decides nothing itself.
//
// # The way of a packet
//
// A [Plane] parses a packet and asks, in this order: the session table (which server did
// this connection get?), for a miss on a virtual address the associations (which server
// did this client get?), then the policies (which service does it belong to?), then the
// service's pool (which node takes a new session?). The packet is rewritten for the node,
// and the node's answers are rewritten back. A packet that is not for a virtual address
// and belongs to no session is passed on untouched, or dropped if so configured. Every drop
// has a counted [Reason]; nothing is logged per packet.
//
// # Concurrency
//
// A Plane has one worker per device queue. Workers share the tables; each keeps its own
// counters. Configuration is compiled off the path into an immutable snapshot which
// workers load once per batch, so that it can be exchanged under load without
// disturbing a session.
//
// # What it does not do
//
// It opens no device (see dataplane/tun and its neighbours), resolves no names and probes
// no server: health comes in through [ApplyHealth] or [Plane.SetUp].
package dataplane
