// Command image makes an OCI image of built programs, one for each architecture, without a container engine; or, with -chart, the OCI artifact
// of a Helm chart. Nothing of it depends on the machine or the time: the same files and the same arguments give the same bytes.
//
// In: static programs, built with -trimpath, as arguments; the module around the working directory, whose packages they are
// made of; the modules' license files, where Go has them.
// Out: an OCI layout as a tar file, with one image for each program in an index; on request, the same index in a registry.
// The image holds the program, all licenses and notices of what is in it, and an SBOM.
// Never: a license that isn't known and allowed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// settings are the arguments.
type settings struct {
	// version and revision say what the programs were built from; the revision may be empty.
	version, revision string
	// created is the time of every file and of the image.
	created time.Time
	// tag is the name under which the tar file is loaded.
	tag name.Tag
	// output is the tar file, push the reference to push to, or empty.
	output, push string
	// documents is the folder for copies of each SBOM and of the notices, or empty.
	documents string
	// chart is the archive of a Helm chart. With it, there is no program: the output is the artifact of the chart.
	chart    string
	programs []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s, err := parse(os.Args[1:])
	if err == nil {
		err = s.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func parse(args []string) (s settings, err error) {
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.StringVar(&s.version, "version", "", "version of the program")
	fs.StringVar(&s.revision, "revision", "", "commit that the program was built from")
	epoch := fs.Int64("epoch", 0, "time of everything in the image, in seconds since 1970")
	image := fs.String("image", "", "name and tag of the image in the tar file")
	fs.StringVar(&s.output, "output", "", "tar file to write")
	fs.StringVar(&s.push, "push", "", "repository and tag to push to as well")
	fs.StringVar(&s.documents, "documents", "", "folder for copies of the SBOM and the notices of each architecture")
	fs.StringVar(&s.chart, "chart", "", "archive of a Helm chart, to make its artifact instead of an image")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	s.created, s.programs = time.Unix(*epoch, 0).UTC(), fs.Args()
	if s.chart != "" {
		return s, nil
	}
	if s.version == "" || s.output == "" || len(s.programs) == 0 {
		return s, fmt.Errorf("parse arguments: -version, -output and a program are needed")
	}
	s.tag, err = name.NewTag(*image)
	return s, err
}

// run makes the image and says what became of it.
func (s settings) run(ctx context.Context) error {
	if s.chart != "" {
		return s.writeChart()
	}
	r, err := newRecogniser()
	if err != nil {
		return fmt.Errorf("read known licenses: %w", err)
	}
	var programs []*program
	for _, path := range s.programs {
		p, err := readProgram(ctx, r, path, s.version)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		programs = append(programs, p)
	}
	index, err := s.index(programs)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := s.writeArchive(index); err != nil {
		return fmt.Errorf("write %s: %w", s.output, err)
	}
	if err := s.writeDocuments(programs); err != nil {
		return fmt.Errorf("write documents: %w", err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := s.describe(index); err != nil {
		return err
	}
	if s.push != "" {
		pushed, err := push(ctx, s.push, index)
		if err != nil {
			return fmt.Errorf("push %s: %w", s.push, err)
		}
		fmt.Println("pushed:", pushed)
	}
	fmt.Println("digest:", digest)
	return nil
}
