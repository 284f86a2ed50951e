package sslpersist

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type (
	transcriptRow struct {
		Name  string
		Flows []struct {
			Dir string
			B64 []byte
		}
		Expected struct {
			Clients []wantClient `json:"client_hellos"`
			Servers []wantServer `json:"server_hellos"`
			Tickets int          `json:"new_session_tickets"`
			Resumed bool         `json:"resumed"`
			TLS13   bool         `json:"tls13"`
		}
	}
	seedRow struct {
		Corpus  string
		B64     []byte
		Offsets []int `json:"hello_record_offsets"`
	}
)

func (r transcriptRow) bytes(dir string) (b []byte) {
	for _, f := range r.Flows {
		if f.Dir == dir {
			b = append(b, f.B64...)
		}
	}
	return b
}

func TestTranscriptsOfCryptoTLS(t *testing.T) {
	for _, r := range readLines[transcriptRow](t, "tls/go_crypto_tls_transcripts.jsonl") {
		t.Run(r.Name, func(t *testing.T) {
			ch, err := parseInPieces(t, r.bytes("c2s"), nil, ParseClientHello, (*Parser).Client)
			if len(r.Expected.Clients) > 0 {
				require.NoError(t, err)
				r.Expected.Clients[0].check(t, ch)
			}
			sh, err := parseInPieces(t, r.bytes("s2c"), nil, ParseServerHello, (*Parser).Server)
			if len(r.Expected.Servers) > 0 {
				require.NoError(t, err)
				r.Expected.Servers[0].check(t, sh)
			}
		})
	}
}

func TestSeedsOfBoringSSLDoNotPanic(t *testing.T) {
	for _, r := range readLines[seedRow](t, "tls/boringssl_fuzz_seeds.jsonl") {
		for _, at := range append([]int{0}, r.Offsets...) {
			_, _ = parseInPieces(t, r.B64[at:], nil, ParseClientHello, (*Parser).Client)
			_, _ = parseInPieces(t, r.B64[at:], nil, ParseServerHello, (*Parser).Server)
		}
	}
}
