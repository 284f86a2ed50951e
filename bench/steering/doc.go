// Package steering compares the tables and pools of lbprim/steering with kkdai/maglev,
// dgryski/go-maglev, dgryski/go-rendezvous, buraksezer/consistent and
// stathat.com/c/consistent: build, lookup, imbalance and disruption, in one run.
//
//	go test ./steering -run Compare -v     ratios, interleaved rounds, CPU time
//	go test ./steering -bench .            ordinary benchmarks
package steering
