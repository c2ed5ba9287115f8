"""What the plan command shows: tables, figures, and the published results beside ours."""
