// Package policy compares the tables of lbprim/policy with a linear scan of sorted rules,
// with three Go maps, one for each tier, and with nested Go maps whose client ranges are in
// gaissmai/bart tables: look-up, growth, compile, in one run.
//
//	go test ./policy -run Compare -v              ratios, interleaved rounds, CPU time
//	go test ./policy -run Compare -v -thorough    the same with a million rules, and for longer
//	go test ./policy -bench .                     ordinary benchmarks
package policy
