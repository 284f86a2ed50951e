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
// has a counted [Reason]; nothing is logged per packet. [Plane.Explain] shows the whole way of one packet, by the
// code that forwards.
//
// # Sessions
//
// A session has an entry for each direction, found by the full Layer 4 key, and one record that both share. Its entries
// are gone together: when it has aged, ended, made room for another or lost its node. A node's sessions are lost at
// once and without a search when it goes down or is removed: the client's next packet is answered by a
// reset that it must believe (or as Service.ServerLost says), and its next connection goes elsewhere. Packets in the middle of connections that were
// never known are another matter (Service.MidStream). Nothing else ends a session: [Plane.Apply]
// exchanges services, policies and modes, [Plane.SetNodes] the nodes, under load; and with [Plane.WriteTo] and
// [Plane.Restore] sessions outlive the process.
//
// # Forwarding
//
// NAT and full NAT rewrite packets in place, super-packets as a whole. With DSR and tunnels the node answers past the
// balancer; super-packets are split before they go into a tunnel. What a tunnel has no room for is dealt with in
// three steps: the MSS of connections is lowered; senders of packets that must not be fragmented are told; and
// these packets are sent all the same, in fragments of the outer packet. Later fragments follow the first one,
// and wait for it. ICMP errors about packets of a session reach who sent them, with the quoted packet translated.
//
// # In the path
//
// With [Intercept], flows that are for no virtual address are redirected by the rules of steering/intercept: a SYN meets the in-path and
// load-balance rules, everything else that is unknown, and what those let pass, the network services table. Both directions of a redirected flow
// go to its node in a tunnel, untouched. What a node sends to the balancer in a tunnel goes on without a decision: by the channel
// whose key it has (steering/path), else as it is routed. What leaves so, and what nothing redirects, gets the DSCP that path rules and QoS rows say.
//
// # Looking on
//
// [Plane.Sessions] has the sessions with what they moved. [Plane.Capture] writes chosen packets to a file, as they came and with what became of
// each, [Config.Flows] has chosen services' flows told to a collector, and [Plane.Trace] explains those of chosen flows, both while the Plane forwards and without holding it up.
//
// # Clusters
//
// With [Peers], Planes tell each other which node a flow has. A packet of a connection that has begun elsewhere, and so is
// unknown here, asks them before it is refused or balanced anew, and waits for at most [AskTimeout]: a TCP packet that is no
// SYN, a later fragment whose first one has not come, and an ICMP error. What the peers know is taken over as a session of this Plane's own, with the same node and
// the same translation, so that both directions of a connection may come by different balancers. Whoever took a flow over tells of it, and takes it
// back at its end, as who began it does. A SYN and a datagram are
// balanced at once, then announced, unless this balancer was told already that their flow has a node: so a SYN that is sent again may come by another
// balancer. No packet of such flows is sent to another balancer: what the peers know is enough to forward it
// here, without a detour and without need of the other one, whose loss then breaks nothing.
//
// Connections with delayed binding are taken over once they are spliced. Before, or where every request is judged, only one balancer can deal with
// them: with [Relay] the others send it their packets, in GRE with a key; without, they refuse them, as they do when that balancer is gone.
//
// [Plane.Replicas] are the tables that a backup follows, so that it takes over with its clients: what these are bound to
// beyond their sessions, and TLS sessions.
//
// # Concurrency
//
// A Plane has one worker per device queue, or any number to which packets are handed by the client's endpoint. Workers share the tables; each keeps its own
// counters. Configuration is compiled off the path into an immutable snapshot which
// workers load once per batch, so that it can be exchanged under load without
// disturbing a session. Which queue a packet comes by does not matter: every worker knows every session.
//
// # What it does not do
//
// It opens no device (see dataplane/tun and its neighbours), resolves no names and probes
// no server: health comes in through [Plane.ApplyHealth], [Plane.ApplyRoster] or [Plane.SetUp]. What it sees of servers itself it tells
// a Roster by [Plane.FeedRoster].
package dataplane
