// Comparisons with other projects' libraries. A module of its own, so that their
// dependencies never reach the importers of lbprim.
module github.com/lbprim/lbprim/bench

go 1.26.0

require github.com/lbprim/lbprim v0.0.0

replace github.com/lbprim/lbprim => ../
