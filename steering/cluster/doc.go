// Package cluster makes several balancers act as one: each knows which node a flow has, also
// when the flow comes by way of another balancer; each knows who is down and what that means for new
// flows; and what clients are bound to outlives the balancer that bound them.
//
// # Layers
//
// Membership, failure detection and gossip are hashicorp/memberlist (SWIM), set so that two to four
// members notice a failure within four seconds. Flows are shared by steering/cluster/flowshare
// over streams between the members. Tables of the caller's are followed by way of [Replica].
// Gossip and streams use one port, UDP and TCP.
//
// # Steady and not
//
// [Config.Members] says who should be there and who stands on the same links with whom. While all
// are up the cluster is steady. Otherwise [Cluster.State] says what is missing, in the terms of
// steering/intercept, whose Engine takes it by SetCluster:
//
//	missing                                   state                 optimised          pass-through
//	a member whose partner is up              serial-partner-down   redirect           redirect, headers only
//	a member that has no partner              parallel-peer-down    if AllowFailure    bypass
//	both members of a pair                    pair-down             if AllowFailure    bypass
//
// # One configuration
//
// Members tell each other a digest of their settings. Where it differs they send each other the settings, and
// each reports what differs, with both values: [Cluster.Mismatches]. A mismatch is never a
// reason to leave the cluster.
//
// # Security
//
// Members share a key; without one a Cluster starts only if that is said explicitly. Gossip is encrypted with AES-GCM
// under a key derived from it and from the cluster's name. Streams are TLS 1.3 in
// which both sides prove to have the key, by a signature of an Ed25519 key derived from it; hence a
// recorded stream is worthless. A frame carries its number in the stream, so that without TLS, too, a frame that is repeated, left out
// or moved ends the stream. Whoever lacks the key, or has the one of another cluster, is
// refused and counted. Members trust each other.
//
// # Concurrency
//
// A [Cluster] is safe for concurrent use. Its goroutines live inside [Cluster.Run]. Functions of Config
// are called from these, one at a time unless they say otherwise, and should not block.
package cluster
