package l7

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const browserGet = "GET /images/cat.jpg?size=big HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n" +
	"Accept: image/avif,image/webp,*/*\r\nAccept-Language: en\r\nAccept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\n" +
	"Cookie: session=0123456789abcdef; theme=dark\r\n\r\n"

func benchPolicy(t testing.TB) *Policy {
	return compile(t, &Config{Mode: Maintain, Normalize: true},
		Rule{Index: 1, First: Method{Kind: Host, Value: "*.example.org"}, Action: farm("1")},
		Rule{Index: 2, First: Method{Kind: URL, Value: "www.example.com/api/*"}, Action: farm("2")},
		Rule{Index: 3, First: Method{Kind: Header, Key: "x-beta"}, Action: farm("3")},
		Rule{Index: 4, First: Method{Kind: Cookie, Key: "theme", Value: "light"}, Action: farm("4")},
		Rule{Index: 5, First: Method{Kind: Text, Value: "curl/"}, Action: farm("5")},
		Rule{Index: 6, First: Method{Kind: PathPrefix, Value: "/images/"}, Second: Method{Kind: PathSuffix, Value: ".jpg"}, Action: farm("6")},
	)
}

// TestStreamDoesNotAllocate: once its buffers have grown, requests on a kept-alive connection
// cost no memory.
func TestStreamDoesNotAllocate(t *testing.T) {
	s := benchPolicy(t).NewStream(Input{})
	b := []byte(browserGet)
	one := func() {
		if st := s.Next(b); st.Decision.Action.Farm != "6" || !st.End {
			panic("not decided")
		}
	}
	one()
	require.Zero(t, testing.AllocsPerRun(100, one))
	bad := []byte("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		c := classifier{policy: s.c.policy}
		c.classify(bad)
	}), 2.0, "a refusal makes no error")
}

func BenchmarkStream(b *testing.B) {
	p := benchPolicy(b)
	in := []byte(browserGet)
	b.Run("kept alive", func(b *testing.B) {
		s := p.NewStream(Input{})
		b.SetBytes(int64(len(in)))
		b.ReportAllocs()
		for b.Loop() {
			s.Next(in)
		}
	})
	b.Run("new connection", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.NewStream(Input{}).Next(in)
		}
	})
}
