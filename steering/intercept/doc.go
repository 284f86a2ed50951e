// Package intercept decides what a balancer in the path does with traffic that is not
// addressed to it: which flows it redirects to which node, and which it lets pass.
//
// # Order of processing
//
//  1. A packet that a node sent passes: it has been where it should.
//  2. A flow the caller knows goes to its node, whatever the rules say now.
//  3. A TCP SYN from the LAN side meets the in-path rules, first match: redirect, pass
//     through, discard or deny. No match is redirect.
//  4. What is to be redirected, and a SYN that carries an autodiscovery probe from the
//     WAN side, meets the load-balance rules, first match. A redirect without a usable
//     target goes on with the next rule. Without a match the automatic pool is asked:
//     the nodes no rule names. If it has none, the flow is passed through.
//  5. Everything else, and everything passed through or pre-existing, meets the network
//     services table, whose rows do not care for direction. The node is found by
//     capacity buckets; without a match, or without a node, the packet passes by, and
//     the [Decision] says why.
//
// # Optimised connections
//
// Among the targets of a load-balance rule those under less pressure come first, then
// the node that serves most connections of the same remote peer (peer affinity; of a peer
// without connections, the node that had the last, as far as memory for 65,536 such
// peers goes back), then
// the one with the fewest connections for its capacity. Fair peering keeps every node
// below a number of remote peers: per rule, or, with Config.FairPeeringV2, over all
// nodes, in place of what the rules say.
//
// # Concurrency and state
//
// An [Engine] is safe for concurrent use. Rules and rows are compiled into a view and
// swapped in whole; node ids, counters, health, pressure and affinity outlive any
// number of them. Deciding about pass-through traffic takes no lock; choosing a node
// for a new optimised connection takes a short one. Flows themselves are the caller's
// table.
package intercept
